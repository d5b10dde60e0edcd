--[[
  Stops deciding in a shard until it is opened with a higher epoch.

  KEYS[1]  head

  Returns the epoch that was in force; 0: none.
]]
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch then return 0 end
redis.call('HSET', KEYS[1], 'shut', 1)
return tonumber(epoch)
