--[[
  Included by the commands of the semaphore. Not a command of its own.

  First come, first served: who wants many permits is not passed by those who want few. Each holder has a lease of its own:
  the permits of one that died come back when it ends.

  A semaphore is four keys:
    holders  sorted set of request ids by the millisecond at which each lease ends
    details  hash: request id → `<permits> <token> <since ms> <info>`; `!used` → permits that are out
    queue    sorted set of `<rid> <permits>` by ticket
    size     the size that `resize` stored; absent: each request brings its own
]]
local holdersKey, detailsKey, queueKey, limit

local function use(first, defaultLimit)
  holdersKey, detailsKey, queueKey = KEYS[first], KEYS[first + 1], KEYS[first + 2]
  limit = tonumber(redis.call('GET', KEYS[first + 3]) or defaultLimit)
end

local function used()
  return tonumber(redis.call('HGET', detailsKey, '!used') or '0')
end

local function dropHolder(rid)
  if redis.call('ZREM', holdersKey, rid) == 0 then return false end
  local permits = string.match(redis.call('HGET', detailsKey, rid), '^%d+')
  redis.call('HDEL', detailsKey, rid)
  -- The last one out takes the counter along: nothing is left behind.
  if redis.call('HINCRBY', detailsKey, '!used', -permits) <= 0 then redis.call('HDEL', detailsKey, '!used') end
  return true
end

local function purge()
  for _, rid in ipairs(redis.call('ZRANGEBYSCORE', holdersKey, '-inf', nowMs())) do dropHolder(rid) end
end

-- `exactly`: '1' if it may become shorter, too.
local function extendTo(rid, leaseMs, exactly)
  lastAtLeast(holdersKey, leaseMs + 1000)
  lastAtLeast(detailsKey, leaseMs + 1000)
  local endMs = nowMs() + leaseMs
  if exactly ~= '1' then endMs = math.max(endMs, tonumber(redis.call('ZSCORE', holdersKey, rid) or '0')) end
  redis.call('ZADD', holdersKey, endMs, rid)
  -- A key that was only made now had nothing to last.
  lastAtLeast(holdersKey, leaseMs + 1000)
end

local function admit(rid, permits, leaseMs, info)
  local token = mint()
  local details = digits(permits) .. ' ' .. digits(token) .. ' ' .. digits(nowMs()) .. ' ' .. info
  redis.call('HSET', detailsKey, rid, details)
  redis.call('HINCRBY', detailsKey, '!used', permits)
  extendTo(rid, leaseMs)
  return token
end

-- The first in the queue that lives, and what it wants; dead ones go. `asker` is taken to live.
local function head(asker)
  while true do
    local member = redis.call('ZRANGE', queueKey, 0, 0)[1]
    if not member then return nil end
    local rid, permits = string.match(member, '^(%S+) (%d+)$')
    if rid == asker or lives(rid) then return rid, tonumber(permits), member end
    redis.call('ZREM', queueKey, member)
  end
end

-- Lets in from the head of the queue while it fits. Returns how many were told, and the token of `asker` if it is among them.
local function settle(asker)
  local told, token = 0, nil
  while true do
    local rid, permits, member = head(asker)
    if not rid or used() + permits > limit then return told, token end
    redis.call('ZREM', queueKey, member)
    local minted = admit(rid, permits, graceMs, '')
    if rid == asker then
      token = minted
    else
      wake(rid, grantMessage(rid, minted))
      told = told + 1
    end
  end
end

local function retryMs()
  local first = redis.call('ZRANGE', holdersKey, 0, 0, 'WITHSCORES')[2]
  return first and math.max(1, tonumber(first) - nowMs()) or 10000
end
