--[[
  SET behind fence-guard.lua, which comes before this.

  KEYS[1]  key
  ARGV[1]  value

  Returns OK
]]
return redis.call('SET', KEYS[1], ARGV[1])
