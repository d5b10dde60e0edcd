--[[
  Opens a shard for an epoch that the ledger has just raised: from now on likes are decided in it. Begins with nothing: subjects come in
  one by one, as they are liked.

  KEYS[1..3]  head, epochs whose streams the pipe reads, old epochs that are to be cleared
  KEYS[4..5]  stream, first generation of pairs of the new epoch
  ARGV[1]     the new epoch

  Returns 'opened'; or a number: the epoch in force, which is not below the new one.
]]
-- @include _server
-- @include _generations

local call = redis.call
local inForce = tonumber(call('HGET', KEYS[1], 'epoch') or 0)
if inForce >= tonumber(ARGV[1]) then return inForce end
local info = serverInfo()
local run, replid = string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)')
local made = redis.pcall('XGROUP', 'CREATE', KEYS[4], 'ledger', '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
call('SADD', KEYS[2], ARGV[1])
beginGeneration(KEYS[5])
if inForce > 0 then call('SADD', KEYS[3], inForce) end
call('DEL', KEYS[1])
call('HSET', KEYS[1], 'epoch', ARGV[1], 'server', run, 'replid', replid or '', 'n', 0, 'told', 0, 'unsettled', 0, 'users', 0,
  'gen', 0, 'edge', 0, 'edgeAt', 0, 'cursor', 0)
return 'opened'
