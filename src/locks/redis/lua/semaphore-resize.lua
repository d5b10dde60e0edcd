--[[
  Stores the size of a semaphore for everybody, or forgets it; lets in whoever fits now. Who holds permits keeps them.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..6]  holders, details, queue, size (see _semaphore.lua)
  ARGV[1..2]  channel, publish (see _frame.lua)
  ARGV[3]     the size, or '' to forget it
  ARGV[4]     the size where none is stored
  ARGV[5]     hand-over ms

  Returns 1.
]]
-- @include _frame
-- @include _semaphore

if ARGV[3] == '' then redis.call('DEL', KEYS[6]) else redis.call('SET', KEYS[6], ARGV[3]) end
use(3, ARGV[4])
purge()
settle(tonumber(ARGV[5]))
keepMinted()
return 1
