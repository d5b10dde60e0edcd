--[[
  Asks whether this server takes writes: a replica, or a master that must not write, refuses even one without effect.

  KEYS[1]  the name of a key that never exists
]]
return redis.call('DEL', KEYS[1])
