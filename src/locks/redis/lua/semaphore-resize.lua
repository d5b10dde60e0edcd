--[[
  Stores the size of a semaphore for everybody, or forgets it; lets in whoever fits now. Who holds permits keeps them.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..6]  holders, details, queue, size (see _semaphore.lua)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     the size, or '' to forget it
  ARGV[5]     the size where none is stored

  Returns 1.
]]
-- @include _frame
-- @include _semaphore

if ARGV[4] == '' then redis.call('DEL', KEYS[6]) else redis.call('SET', KEYS[6], ARGV[4]) end
use(3, ARGV[5])
purge()
settle()
keepMinted()
return 1
