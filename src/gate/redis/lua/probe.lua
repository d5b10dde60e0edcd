--[[
  Asks whether this server takes writes: a replica, or a master that must not write, refuses even one without effect.

  KEYS[1]  a name that nothing has
]]
return redis.call('DEL', KEYS[1])
