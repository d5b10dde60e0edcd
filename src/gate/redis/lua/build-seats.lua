--[[
  Writes a part of the seats of a gate that is being built. Refuses as build-chunk.lua does if that build is over, so that a copy of a
  part that comes late changes nothing. A part says where it belongs: it may come twice.

  KEYS[1..3]  epochs, items, seats
  ARGV[1..2]  the epoch, the builder
  ARGV[3..4]  where the part begins, and its bytes

  Returns 0, or -1 if it refuses.
]]
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 or redis.call('HGET', KEYS[2], 'build') ~= ARGV[2] then return -1 end
redis.call('SETRANGE', KEYS[3], ARGV[3], ARGV[4])
return 0
