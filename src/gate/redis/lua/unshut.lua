--[[
  Opens a gate that was put in place shut, unless another epoch is in force by now.

  KEYS[1]  gate
  ARGV[1]  its epoch
]]
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 'other' end
redis.call('HDEL', KEYS[1], 'shut')
return 'open'
