--[[
  KEYS[1..2]  head; stream of the epoch that the caller believes in force
  ARGV[1]     that epoch

  Returns the epoch in force, or 0 if the shard is stale: missing, shut, opened by a server that this one is not (or was not all the
  time), or (seen only by a caller who knows its epoch) with a stream that is gone.
]]
-- @include _server

local head = redis.call('HMGET', KEYS[1], 'epoch', 'server', 'replid', 'shut')
if not head[1] or not head[2] or head[4] or not isServer(head[2], head[3] or '') then return 0 end
if head[1] == ARGV[1] and redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
return tonumber(head[1])
