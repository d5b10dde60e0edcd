--[[
  Writes a part of a gate that is being built. Refuses if that build is over: the epoch was overtaken, another builder has
  begun it anew, or the server has forgotten it. So a builder that was stopped and wakes up writes nowhere that counts.

  KEYS[1..2]  epochs, items
  KEYS[3]     the hash to write to
  ARGV[1]     the epoch
  ARGV[2]     the builder
  then        fields and values

  Returns 1, or 0 if it refuses.
]]
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 or redis.call('HGET', KEYS[2], 'build') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[3], unpack(ARGV, 3))
return 1
