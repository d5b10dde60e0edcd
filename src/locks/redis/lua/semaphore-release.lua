--[[
  Gives permits back, or leaves the queue; lets in whoever may enter now.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[4i-1..]   for request i: holders, details, queue, size (see _semaphore.lua)
  ARGV[1..2]     channel, publish (see _frame.lua)
  ARGV[5i-2..]   for request i: rid, hand-over ms, 1 to remember the id as gone, permits, size where none is stored

  Returns for each request
    1  released, nobody was let in
    2  released, and somebody was let in who has yet to confirm
    3  left the queue
    0  neither held nor queued
]]
-- @include _frame
-- @include _semaphore

local replies = {}
for i = 1, (#KEYS - 2) / 4 do
  local a = 5 * i - 2
  local rid = ARGV[a]
  use(4 * i - 1, ARGV[a + 4])
  purge()
  local held = dropHolder(rid)
  local queued = redis.call('ZREM', queueKey, rid .. ' ' .. ARGV[a + 3]) == 1
  local told = settle(tonumber(ARGV[a + 1]))
  replies[i] = held and (told > 0 and 2 or 1) or (queued and 3 or 0)
  if ARGV[a + 2] == '1' then rememberGone(rid) end
end
keepMinted()
return replies
