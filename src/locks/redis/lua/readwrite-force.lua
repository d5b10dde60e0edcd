--[[
  Takes a read-write lock from everybody who holds it, tells them, and lets in whoever is next.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..7]  writer, readers, details, read-queue, write-queue (see _readwrite.lua)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)

  Returns the request ids it was taken from.
]]
-- @include _frame
-- @include _readwrite

use(3)
purge()
local taken = redis.call('ZRANGE', readersKey, 0, -1)
taken[#taken + 1] = writerOf()
redis.call('DEL', writerKey, readersKey, detailsKey)
settle(nil)
keepMinted()
for _, rid in ipairs(taken) do wake(rid, 'lost ' .. rid) end
return taken
