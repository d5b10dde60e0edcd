--[[
  Registers an epoch that is about to be built. Deletes what an earlier attempt at it has left, and what builders of lower epochs
  have left that never opened: they died, or this one overtakes them.

  KEYS[1..2]  gate, epochs
  KEYS[3..8]  items, holds, keys, house, seats, changes of the new epoch
  ARGV[1]     the new epoch
  ARGV[2]     the builder: a name that nobody else has
  ARGV[3]     the prefix of the names of an epoch's keys; `<epoch>:items` and so on follow

  Returns {this server's run id and replication id, a blank between}; or a number: the epoch in force, which is not below the
  new one.
]]
-- @include _server

local call = redis.call
local epoch = tonumber(ARGV[1])
local inForce = tonumber(call('HGET', KEYS[1], 'epoch') or 0)
if inForce >= epoch then return inForce end
for _, other in ipairs(call('SMEMBERS', KEYS[2])) do
  local of = ARGV[3] .. other
  if tonumber(other) < epoch and call('HEXISTS', of .. ':items', 'build') == 1 then
    call('UNLINK', of .. ':items', of .. ':holds', of .. ':keys', of .. ':house', of .. ':seats', of .. ':changes')
    if call('EXISTS', of .. ':stream') == 0 then call('SREM', KEYS[2], other) end
  end
end
local info = serverInfo()
local run, replid = string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)')
call('SADD', KEYS[2], ARGV[1])
call('UNLINK', KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8])
call('HSET', KEYS[3], 'build', ARGV[2])
return { run .. ' ' .. (replid or '') }
