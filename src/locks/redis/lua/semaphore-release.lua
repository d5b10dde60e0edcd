--[[
  Gives permits back, or leaves the queue; lets in whoever may enter now.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[4i-1..]   for request i: holders, details, queue, size (see _semaphore.lua)
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[4i..]     for request i: rid, 1 to remember the id as gone, permits, size where none is stored

  Returns {0, reply of request 1, …}; a reply is
    1  released, nobody was let in
    2  released, and somebody was let in who has yet to confirm
    3  left the queue
    0  neither held nor queued
    4  not held, and somebody else was let in who has yet to confirm
]]
-- @include _frame
-- @include _semaphore

local function release(i)
  local a = 4 * i
  local rid = ARGV[a]
  use(4 * i - 1, ARGV[a + 3])
  purge()
  local held = dropHolder(rid)
  local queued = redis.call('ZREM', queueKey, rid .. ' ' .. ARGV[a + 2]) == 1
  local told = settle()
  if ARGV[a + 1] == '1' then rememberGone(rid) end
  if held then return told > 0 and 2 or 1 end
  return told > 0 and 4 or (queued and 3 or 0)
end

local replies = {0}
for i = 1, (#KEYS - 2) / 4 do replies[i + 1] = guarded(release, i) end
keepMinted()
return replies
