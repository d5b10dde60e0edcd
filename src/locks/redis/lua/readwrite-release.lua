--[[
  Gives a read or write hold back, leaves a queue, or withdraws the wish to upgrade; lets in whoever may enter now.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[5i-2..]   for request i: writer, readers, details, read-queue, write-queue (see _readwrite.lua)
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[3i+1..]   for request i: rid, 1 to remember the id as gone, and the id of the read hold that it becomes again (''
                 none): for an upgrade that is given up, and may have come true

  Returns {0, reply of request 1, …}; a reply is
    1  released, nobody was let in
    2  released, and somebody was let in who has yet to confirm
    3  left the queue
    0  neither held nor queued
    4  not held, and somebody else was let in who has yet to confirm
]]
-- @include _frame
-- @include _readwrite

local function release(rid, backTo)
  purge()
  told = 0
  local owner, token = writerOf()
  if owner == rid and backTo ~= '' then
    local leftMs = redis.call('PTTL', writerKey)
    redis.call('DEL', writerKey)
    setReader(backTo, tonumber(token), leftMs, '')
    admitReaders()
    return told > 0 and 4 or 3
  end
  if owner == rid then
    redis.call('DEL', writerKey)
    settle('write')
    return told > 0 and 2 or 1
  end
  if dropReader(rid) then
    settle('read')
    return told > 0 and 2 or 1
  end
  local _, wish = upgradeOf()
  local left = redis.call('ZREM', readQueue, rid) + redis.call('ZREM', writeQueue, rid)
  if wish == rid then
    dropUpgrade()
    left = 1
  end
  settle(nil)
  if told > 0 then return 4 end
  return left > 0 and 3 or 0
end

local replies = {0}
for i = 1, (#KEYS - 2) / 5 do
  use(5 * i - 2)
  local a = 3 * i + 1
  replies[i + 1] = guarded(release, ARGV[a], ARGV[a + 2])
  if ARGV[a + 1] == '1' then guarded(rememberGone, ARGV[a]) end
end
keepMinted()
return replies
