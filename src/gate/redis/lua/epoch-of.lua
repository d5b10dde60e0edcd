--[[
  KEYS[1]     gate
  KEYS[2..4]  items, stream, seats of the epoch that the caller believes in force
  ARGV[1]     that epoch

  Returns the epoch in force, or 0 if the gate is stale: missing, shut, opened by a server that this one is not (or was not all
  the time), or (seen only by a caller who knows its epoch) with keys that are gone.
]]
-- @include _server

local gate = redis.call('HMGET', KEYS[1], 'epoch', 'run', 'shut', 'replid')
if not gate[1] or not gate[2] or gate[3] then return 0 end
if not isServer(gate[2], gate[4] or '') then return 0 end
if gate[1] == ARGV[1] then
  if redis.call('EXISTS', KEYS[2], KEYS[3]) < 2 then return 0 end
  -- Of a sale with seats.
  if redis.call('HEXISTS', KEYS[2], 'N') == 1 and redis.call('EXISTS', KEYS[4]) == 0 then return 0 end
end
return tonumber(gate[1])
