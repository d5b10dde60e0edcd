--[[
  Takes a waiter out of a latch.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..5]  count, counted, waiters (see latch-set.lua)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     rid

  Returns 1 if it waited, else 0.
]]
return redis.call('ZREM', KEYS[5], ARGV[4])
