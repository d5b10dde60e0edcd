--[[
  Included by every command that mints or wakes. Not a command of its own.

  The frame of a batch: requests of one process that arrive in the same turn of its event loop, for locks of one bucket,
  come in one call. KEYS and ARGV begin with what they share:
    KEYS[1]  clock    the largest number minted in this bucket, tokens and tickets alike; never expires, one per bucket
    KEYS[2]  gone     sorted set of request ids that were given up, by the millisecond until which that is remembered
    ARGV[1]  channel  what a client's wake-up channel begins with; its name follows
    ARGV[2]  publish  PUBLISH, or SPUBLISH in a cluster
    ARGV[3]  grace    for how many ms a lock is handed over, unless its new holder confirms

  Redis' own TIME is the only clock. It stands still while a script runs.

  Every command of a batch returns {TIME in microseconds (0: not asked for), reply of request 1, …}; of a request that
  failed the reply is {-9, error}.
]]
local graceMs = tonumber(ARGV[3])
local timeUs, minted, mintedAtStart

local function nowUs()
  if not timeUs then
    local time = redis.call('TIME')
    timeUs = time[1] * 1000000 + time[2]
  end
  return timeUs
end

local function nowMs()
  return math.floor(nowUs() / 1000)
end

-- max(last + 1, TIME in microseconds). Below 2^53 until the year 2255, so that Lua's numbers hold it exactly.
local function mint()
  if not minted then
    mintedAtStart = tonumber(redis.call('GET', KEYS[1]) or '0')
    minted = mintedAtStart
  end
  minted = math.max(minted + 1, nowUs())
  return minted
end

-- To be called once, at the end: the clock is written once for a whole batch.
local function keepMinted()
  if minted and minted > mintedAtStart then redis.call('SET', KEYS[1], minted) end
end

-- Lua's own tostring would write 1.7e+15.
local function digits(number)
  return string.format('%.0f', number)
end

local anyGone
-- Was this request given up before this copy of it arrived?
local function isGone(rid)
  if anyGone == nil then anyGone = redis.call('EXISTS', KEYS[2]) == 1 end
  if not anyGone then return false end
  local untilMs = redis.call('ZSCORE', KEYS[2], rid)
  return untilMs and tonumber(untilMs) > nowMs()
end

local GONE_MS = 120000
local function rememberGone(rid)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', nowMs())
  redis.call('ZADD', KEYS[2], nowMs() + GONE_MS, rid)
  redis.call('PEXPIRE', KEYS[2], GONE_MS)
  anyGone = true
end

-- A queue that nobody tends any more goes by itself; who waits joins again at least three times in this span.
local QUEUE_MS = 60000

-- One request of a batch: a key of another type, or a Redis that is full, must not fail its neighbours, of whom some may
-- have been served already.
local function guarded(serve, ...)
  local fine, reply = pcall(serve, ...)
  if fine then return reply end
  return {-9, type(reply) == 'table' and reply.err or tostring(reply)}
end

local deaf = {}
-- Whether the client that made `rid` listens: else that process is gone. Not by what PUBLISH returns: that counts those who
-- listen to every channel, too.
local function lives(rid)
  local client = string.match(rid, '^[^.]+')
  if deaf[client] == nil then
    local count = ARGV[2] == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB'
    deaf[client] = redis.call('PUBSUB', count, ARGV[1] .. client)[2] == 0
  end
  return not deaf[client]
end

-- Tells the client that made `rid`. False: nobody listens there.
local function wake(rid, message)
  if not lives(rid) then return false end
  redis.call(ARGV[2], ARGV[1] .. string.match(rid, '^[^.]+'), message)
  return true
end

local function grantMessage(rid, token)
  return 'granted ' .. rid .. ' ' .. digits(token) .. ' ' .. digits(nowUs())
end

-- Keys of shared state last at least as long as the longest lease in them. Always a write, and before others: a Redis that
-- is full refuses a script's first ZADD, but not one that follows a PEXPIRE; who holds must be able to renew there.
local function lastAtLeast(key, ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ms))
end

-- The place of a waiter: the one it had, or a new one at the end. `member` is what stands in the queue for it. Returns its
-- ticket, and 1 if it had one and was not in the queue any more.
local function enqueue(queue, member, ticket)
  local number = tonumber(ticket)
  if ticket == '0' then number = tonumber(redis.call('ZSCORE', queue, member) or mint()) end
  local added = redis.call('ZADD', queue, 'NX', number, member)
  redis.call('PEXPIRE', queue, QUEUE_MS)
  return number, ticket ~= '0' and added or 0
end