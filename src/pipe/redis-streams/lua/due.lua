--[[
  Puts messages that are due to be tried again back into the stream of their epoch, each as an entry of its own that says
  how often it was tried.

  KEYS[1]  retry
  KEYS[2]  epochs
  ARGV[1]  what the names of the channel's streams begin with; `<epoch>:stream` follows
  ARGV[2]  at most so many

  Returns the epochs whose streams got some.
]]
local retry, epochs = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local nowMs = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local members = redis.call('ZRANGEBYSCORE', retry, '-inf', nowMs, 'LIMIT', 0, ARGV[2])
local found = {}
for i, member in ipairs(members) do found[i] = cjson.decode(member) end

local seen, woken = {}, {}
for i, member in ipairs(members) do
  local tries, epoch, fields = unpack(found[i])
  table.insert(fields, 'tries')
  table.insert(fields, tries)
  redis.call('XADD', ARGV[1] .. epoch .. ':stream', '*', unpack(fields))
  redis.call('ZREM', retry, member)
  if not seen[epoch] then
    seen[epoch] = true
    table.insert(woken, epoch)
    -- The stream may have been drained and removed meanwhile.
    redis.call('SADD', epochs, epoch)
  end
end
return woken
