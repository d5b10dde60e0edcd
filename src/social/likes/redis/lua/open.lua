--[[
  Opens a shard for an epoch that the ledger has just raised: from now on likes are decided in it. Begins with nothing: subjects come in
  one by one, as they are liked. Or leaves the shard to the ledger, which decides likes from this epoch on: nothing is decided here, and an
  opener that was held up with a lower epoch comes too late.

  KEYS[1..3]  head, epochs whose streams the pipe reads, old epochs that are to be cleared
  KEYS[4..5]  stream, first generation of pairs of the new epoch
  ARGV[1]     the new epoch
  ARGV[2]     1: the shard is left to the ledger

  Returns 'opened'; or a number: the epoch in force, which is not below the new one. One that is left to the ledger is shut all the same.
]]
-- @include _server
-- @include _generations

local call = redis.call
local inForce = tonumber(call('HGET', KEYS[1], 'epoch') or 0)
local isLeft = ARGV[2] == '1'
if inForce >= tonumber(ARGV[1]) then
  if isLeft then call('HSET', KEYS[1], 'shut', 1) end
  return inForce
end
local info = serverInfo()
local run, replid = string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)')
if not isLeft then
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[4], 'ledger', '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
  call('SADD', KEYS[2], ARGV[1])
  beginGeneration(KEYS[5])
end
if inForce > 0 then call('SADD', KEYS[3], inForce) end
call('DEL', KEYS[1])
call('HSET', KEYS[1], 'epoch', ARGV[1], 'server', run, 'replid', replid or '', 'n', 0, 'told', 0, 'unsettled', 0, 'users', 0,
  'gen', 0, 'edge', 0, 'edgeAt', 0, 'cursor', 0)
if isLeft then call('HSET', KEYS[1], 'shut', 1) end
return 'opened'
