--[[
  Deletes consumers that have nothing pending; a live one is created again by its next read. Checked and deleted in one step:
  deleting a consumer also deletes what is pending under its name.

  KEYS[1]  stream
  ARGV[1]  only those that did nothing for so many ms …
  ARGV[2]  … or the one with this name, whenever it was last seen ('' none)

  Returns how many.
]]
local stream = KEYS[1]
local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, 'ledger')
if consumers.err then return 0 end
local count = 0
for _, fields in ipairs(consumers) do
  local one = {}
  for i = 1, #fields, 2 do one[fields[i]] = fields[i + 1] end
  if one.pending == 0 and (one.name == ARGV[2] or one.idle >= tonumber(ARGV[1])) then
    redis.call('XGROUP', 'DELCONSUMER', stream, 'ledger', one.name)
    count = count + 1
  end
end
return count
