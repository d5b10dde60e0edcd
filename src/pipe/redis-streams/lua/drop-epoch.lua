--[[
  Removes the stream of an epoch that is over, once it is empty. Never the one in force, nor one above it: that is being built.

  KEYS[1]  stream
  KEYS[2]  epochs
  KEYS[3]  head: its field `epoch` is the one in force; for a sale this is the gate
  ARGV[1]  the epoch

  Returns 1, or 0: it stays.
]]
local inForce = tonumber(redis.call('HGET', KEYS[3], 'epoch') or nil)
if not inForce or tonumber(ARGV[1]) >= inForce or redis.call('XLEN', KEYS[1]) > 0 then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
return 1
