--[[
  Claims the prefix for a shop, unless a shop has it.

  KEYS[1]  the shop that has the prefix
  ARGV[1]  the shop that asks

  Returns the shop that has it.
]]
local owner = redis.call('GET', KEYS[1])
if owner then return owner end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
