--[[
  Included by mutex-serve.lua and once-acquire.lua: takes a free lock, or joins its queue. Not a command of its own.
]]
local function contended(lock, queue, rid, leaseMs, place, info)
  local value = redis.call('GET', lock)
  local owner = ownerOf(value)
  if owner == rid then
    leaseMs = math.max(leaseMs, redis.call('PTTL', lock))
    redis.call('PEXPIRE', lock, leaseMs)
    -- It was handed over, and is confirmed by this.
    if string.find(value, '^%S+ %d+ %d+ $') then redis.call('SET', lock, value .. info, 'PX', leaseMs) end
    return tokenOf(value)
  end
  if isGone(rid) then return {-2} end

  local wantsQueue = place ~= ''
  local ticket, rejoined
  if wantsQueue then ticket, rejoined = enqueue(queue, rid, place) end
  if not owner then owner = handOver(lock, queue, rid) end
  if owner == rid or not owner then return hold(lock, rid, leaseMs, info) end

  local retryMs = redis.call('PTTL', lock)
  if wantsQueue then return {0, retryMs, ticket, rejoined} end
  return {-1, retryMs}
end

-- `a`: where the request's arguments begin: rid, lease ms, place, info.
local function take(lock, queue, a)
  local rid = ARGV[a]
  if redis.call('EXISTS', lock, queue) == 0 and not isGone(rid) then return hold(lock, rid, ARGV[a + 1], ARGV[a + 3]) end
  return contended(lock, queue, rid, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3])
end
