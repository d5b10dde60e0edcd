--[[
  Takes the permits of a semaphore from everybody who holds some, tells them, and lets in whoever fits.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..6]  holders, details, queue, size (see _semaphore.lua)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     the size where none is stored

  Returns the request ids they were taken from.
]]
-- @include _frame
-- @include _semaphore

use(3, ARGV[4])
purge()
local taken = redis.call('ZRANGE', holdersKey, 0, -1)
redis.call('DEL', holdersKey, detailsKey)
settle()
keepMinted()
for _, rid in ipairs(taken) do wake(rid, 'lost ' .. rid) end
return taken
