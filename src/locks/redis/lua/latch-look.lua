--[[
  Shows a latch; while it is not open, a waiter that gives its id is woken when it opens or is set anew.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..5]  count, counted, waiters (see latch-set.lua)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     rid, or ''

  Returns {count, 1 if there is such a latch}.
]]
-- @include _frame

local count = redis.call('GET', KEYS[3])
if not count then return {0, 0} end
if ARGV[4] ~= '' and tonumber(count) > 0 then
  redis.call('ZADD', KEYS[5], 'NX', nowMs(), ARGV[4])
  redis.call('PEXPIRE', KEYS[5], QUEUE_MS)
end
return {tonumber(count), 1}
