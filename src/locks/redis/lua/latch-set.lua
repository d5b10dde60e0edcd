--[[
  Sets a latch: everybody who waits for the old count looks again.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..5]  count, counted (set of request ids that counted), waiters (sorted set of request ids by when they came)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     count
  ARGV[5]     for how many ms it is kept

  Returns 1.
]]
-- @include _frame

redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[5])
local waiting = redis.call('ZRANGE', KEYS[5], 0, -1)
redis.call('DEL', KEYS[4], KEYS[5])
for _, rid in ipairs(waiting) do wake(rid, 'look ' .. rid) end
return 1
