--[[
  Gives a read or write hold back, leaves a queue, or withdraws the wish to upgrade; lets in whoever may enter now.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[5i-2..]   for request i: writer, readers, details, read-queue, write-queue (see _readwrite.lua)
  ARGV[1..2]     channel, publish (see _frame.lua)
  ARGV[4i-1..]   for request i: rid, hand-over ms, 1 to remember the id as gone, read or write

  Returns for each request
    1  released, nobody was let in
    2  released, and somebody was let in who has yet to confirm
    3  left the queue
    0  neither held nor queued
]]
-- @include _frame
-- @include _readwrite

local function release(rid, handOverMs)
  purge()
  told = 0
  if writerOf() == rid then
    redis.call('DEL', writerKey)
    settle('write', handOverMs)
    return told > 0 and 2 or 1
  end
  if dropReader(rid) then
    settle('read', handOverMs)
    return told > 0 and 2 or 1
  end
  local _, wish = upgradeOf()
  local left = redis.call('ZREM', readQueue, rid) + redis.call('ZREM', writeQueue, rid)
  if wish == rid then
    dropUpgrade()
    left = 1
  end
  settle(nil, handOverMs)
  return left > 0 and 3 or 0
end

local replies = {}
for i = 1, (#KEYS - 2) / 5 do
  use(5 * i - 2)
  local a = 4 * i - 1
  replies[i] = release(ARGV[a], tonumber(ARGV[a + 1]))
  if ARGV[a + 2] == '1' then rememberGone(ARGV[a]) end
end
keepMinted()
return replies
