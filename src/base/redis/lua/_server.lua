-- Included by the commands that must know whether this server is still the one that opened the gate or the shard of likes, and was
-- the master all the time. A restart changes the run id. A server that was demoted and promoted again keeps its run id and may have lost its last
-- writes: every promotion gives it a new replication id and keeps the old one as the second. Both also change when the first
-- replica attaches and when the backlog is freed, but then the second is all zeros, and nothing was lost.
local NO_REPLID = string.rep('0', 40)

-- Asked for once a call, however many gates or shards it is about.
local knownInfo

local function serverInfo()
  if not knownInfo then
    -- Redis 7 and later take two sections in one call, for the price of one.
    if redis.REDIS_VERSION_NUM then knownInfo = redis.call('INFO', 'server', 'replication')
    else knownInfo = redis.call('INFO', 'server') .. redis.call('INFO', 'replication') end
  end
  return knownInfo
end

-- `replid` is empty for a gate that an older version of this program has opened.
local function isServer(run, replid)
  local info = serverInfo()
  if not string.find(info, 'run_id:' .. run, 1, true) then return false end
  return string.find(info, 'master_replid:' .. replid, 1, true)
    or string.find(info, 'master_replid2:' .. NO_REPLID, 1, true)
end
