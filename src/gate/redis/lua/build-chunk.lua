--[[
  Writes a part of a gate that is being built. Refuses if that build is over: the epoch was overtaken, another builder has
  begun it anew, or the server has forgotten it. So a builder that was stopped and wakes up writes nowhere that counts.

  KEYS[1..2]  epochs, items
  KEYS[3]     the hash to write to
  ARGV[1]     the epoch
  ARGV[2]     the builder
  ARGV[3]     1 if a value goes behind what is there: a buyer's orders may come in several parts
  then        fields and values

  Returns how many fields are new there, or -1 if it refuses.
]]
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 or redis.call('HGET', KEYS[2], 'build') ~= ARGV[2] then return -1 end
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[3]) == 1 then
  local names = {}
  for i = 4, #ARGV, 2 do names[#names + 1] = ARGV[i] end
  local before = redis.call('HMGET', KEYS[3], unpack(names))
  local values = { unpack(ARGV, 4) }
  for i = 1, #names do
    if before[i] then values[2 * i] = before[i] .. ';' .. values[2 * i] end
  end
  return redis.call('HSET', KEYS[3], unpack(values))
end
return redis.call('HSET', KEYS[3], unpack(ARGV, 4))
