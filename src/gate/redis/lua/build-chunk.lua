--[[
  Writes a part of a gate that is being built. Refuses if that build is over: the epoch was overtaken, another builder has
  begun it anew, or the server has forgotten it. So a builder that was stopped and wakes up writes nowhere that counts.

  A part counts once, however often it comes: in a cluster, ioredis sends what was under way again when a connection breaks, and
  the first copy may come last. A writer waits for the answer to a part before it sends its next one, so the number of its last
  part is enough to know a copy by.

  KEYS[1..2]  epochs, items
  KEYS[3]     the hash to write to
  ARGV[1]     the epoch
  ARGV[2]     the builder
  ARGV[3..4]  which of its writers (1 …), and the number of this part among the writer's (1 …)
  ARGV[5]     1 if a value goes behind what is there: a buyer's orders may come in several parts
  then        fields and values

  Returns how many fields are new there, to a copy the same again; or -1 if it refuses.
]]
local call = redis.call
local lane = 'chunk:' .. ARGV[3]
local known = call('HMGET', KEYS[2], 'build', lane)
if call('SISMEMBER', KEYS[1], ARGV[1]) == 0 or known[1] ~= ARGV[2] then return -1 end
if known[2] then
  local number, added = string.match(known[2], '^(%d+) (%d+)$')
  -- Only the last chunk of a writer can be sent again: nobody waits for the reply to an earlier one.
  if tonumber(ARGV[4]) <= tonumber(number) then return tonumber(added) end
end

local values = { unpack(ARGV, 6) }
if ARGV[5] == '1' and call('EXISTS', KEYS[3]) == 1 then
  local names = {}
  for i = 1, #values, 2 do names[#names + 1] = values[i] end
  local before = call('HMGET', KEYS[3], unpack(names))
  for i = 1, #names do
    if before[i] then values[2 * i] = before[i] .. ';' .. values[2 * i] end
  end
end
local added = call('HSET', KEYS[3], unpack(values))
call('HSET', KEYS[2], lane, ARGV[4] .. ' ' .. added)
return added
