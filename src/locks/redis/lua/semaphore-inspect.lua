--[[
  Shows a semaphore.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..6]  holders, details, queue, size (see _semaphore.lua)

  Returns as mutex-inspect.lua does, with the stored size (-1: none) in the second place.
]]
-- @include _frame
-- @include _semaphore

use(3, '-1')
local holders, waiters = {}, {}
local held = redis.call('ZRANGEBYSCORE', holdersKey, '(' .. digits(nowMs()), '+inf', 'WITHSCORES')
for i = 1, #held, 2 do
  local permits, token, since, info =
    string.match(redis.call('HGET', detailsKey, held[i]) or '0 0 0 ', '^(%d+) (%d+) (%d+) (.*)$')
  for _, part in ipairs({held[i], 'write', token, permits, since, digits(held[i + 1] - nowMs()), info}) do
    holders[#holders + 1] = part
  end
end
local queued = redis.call('ZRANGE', queueKey, 0, 99, 'WITHSCORES')
for i = 1, #queued, 2 do
  local rid, permits = string.match(queued[i], '^(%S+) (%d+)$')
  for _, part in ipairs({rid, 'write', permits, queued[i + 1]}) do waiters[#waiters + 1] = part end
end
return {nowMs(), limit, redis.call('ZCARD', queueKey), holders, waiters}
