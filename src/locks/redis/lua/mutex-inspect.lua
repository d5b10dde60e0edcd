--[[
  Shows a mutex (also fair, once).

  KEYS[1..2]  clock, gone (not used here)
  KEYS[3]     lock
  KEYS[4]     queue

  Returns {TIME in ms, -1, length of the queue, holders, waiters}: of each holder rid, mode, token, permits, since ms,
  remaining ms, info; of each of the first 100 waiters rid, mode, permits, ticket; one after the other.
]]
-- @include _frame

local holders, waiters = {}, {}
local rid, token, since, info = string.match(redis.call('GET', KEYS[3]) or '', '^(%S+) (%d+) (%d+) (.*)$')
if rid then holders = {rid, 'write', token, '1', since, digits(redis.call('PTTL', KEYS[3])), info} end
local queued = redis.call('ZRANGE', KEYS[4], 0, 99, 'WITHSCORES')
for i = 1, #queued, 2 do
  for _, part in ipairs({queued[i], 'write', '1', queued[i + 1]}) do waiters[#waiters + 1] = part end
end
return {nowMs(), -1, redis.call('ZCARD', KEYS[4]), holders, waiters}
