--[[
  Stops admission until a higher epoch is opened. Holds stay.

  KEYS[1]  gate
  ARGV[1]  leaves a gate of a higher epoch open; absent: shuts any
]]
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and (not ARGV[1] or tonumber(epoch) <= tonumber(ARGV[1])) then redis.call('HSET', KEYS[1], 'shut', 1) end
return 'ok'
