--[[
  Everything the gate counts, also of a gate that is shut.

  KEYS[1..2]  gate, items
  ARGV[1]     the epoch that the caller believes in force

  Returns the fields and values of `items`; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
-- @include _epoch

return redis.call('HGETALL', KEYS[2])
