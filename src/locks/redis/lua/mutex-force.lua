--[[
  Takes a mutex (also fair, once) from whoever holds it, tells that process, and hands it to the next waiter.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3]     lock
  KEYS[4]     queue
  ARGV[1..3]  channel, publish, grace (see _frame.lua)

  Returns the request ids it was taken from: one or none.
]]
-- @include _frame
-- @include _mutex

local owner = ownerOf(redis.call('GET', KEYS[3]))
handOver(KEYS[3], KEYS[4])
keepMinted()
if not owner then return {} end
wake(owner, 'lost ' .. owner)
return {owner}
