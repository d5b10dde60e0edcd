--[[
  Registers an epoch that is going to be built, and takes away what an earlier try has left of it.

  KEYS[1..2]  gate, epochs
  KEYS[3..6]  items, holds, keys, house of the new epoch
  ARGV[1]     the new epoch
  ARGV[2]     the builder: a name that nobody else has

  Returns {run id of this server}; or a number: the epoch in force, which is not below the new one.
]]
local call = redis.call
local inForce = tonumber(call('HGET', KEYS[1], 'epoch') or 0)
if inForce >= tonumber(ARGV[1]) then return inForce end
local run = string.match(call('INFO', 'server'), 'run_id:(%x+)')
call('SADD', KEYS[2], ARGV[1])
call('UNLINK', KEYS[3], KEYS[4], KEYS[5], KEYS[6])
call('HSET', KEYS[3], 'build', ARGV[2])
return { run }
