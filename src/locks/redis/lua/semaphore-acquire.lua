--[[
  Takes permits of a semaphore, or joins its queue. Idempotent by request id, and sees to a silent queue (see
  mutex-serve.lua).

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[4i-1..]   for request i: holders, details, queue, size (see _semaphore.lua)
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[6i-2..]   for request i: rid, lease ms, place ('' do not queue, 0 a new one, else the ticket it had), info,
                 permits, size where none is stored

  Returns {TIME in microseconds, reply of request 1, …}; a reply is
    token                    granted
    {0, retry ms, ticket, 1 if it had lost its place}
                             in the queue; the shortest lease ends after `retry ms`
    {-1, retry ms}           not to be had now, not queued
    {-2}                     this request was given up before
]]
-- @include _frame
-- @include _semaphore

local function acquire(i, rid, leaseMs, place, info, permits)
  use(4 * i - 1, ARGV[6 * i + 3])
  purge()
  local details = redis.call('HGET', detailsKey, rid)
  if details then
    extendTo(rid, leaseMs)
    return tonumber(string.match(details, '^%d+ (%d+)'))
  end
  if isGone(rid) then return {-2} end

  if redis.call('EXISTS', queueKey) == 0 and used() + permits <= limit then return admit(rid, permits, leaseMs, info) end
  local wantsQueue = place ~= ''
  local ticket, rejoined
  if wantsQueue then ticket, rejoined = enqueue(queueKey, rid .. ' ' .. digits(permits), place) end
  local _, token = settle(rid)
  if token then
    extendTo(rid, leaseMs)
    redis.call('HSET', detailsKey, rid, digits(permits) .. ' ' .. digits(token) .. ' ' .. digits(nowMs()) .. ' ' .. info)
    return token
  end
  if wantsQueue then return {0, retryMs(), ticket, rejoined} end
  -- Those who stood before it may all have been dead.
  if not head() and used() + permits <= limit then return admit(rid, permits, leaseMs, info) end
  return {-1, retryMs()}
end

local replies = {nowUs()}
for i = 1, (#KEYS - 2) / 4 do
  local a = 6 * i - 2
  replies[i + 1] = guarded(acquire, i, ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], tonumber(ARGV[a + 4]))
end
keepMinted()
return replies
