--[[
  Gives a mutex (also fair, once) back, or leaves its queue. Handed to the next waiter that lives in the same step.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[2i+1..]   for request i: lock, queue
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[2i+2..]   for request i: rid, 1 to remember the id as gone

  Returns for each request
    1  released, nobody waits
    2  released and handed to somebody who has yet to confirm
    3  left the queue
    0  neither held nor queued
]]

-- What happens nearly always, before anything else is even defined: one holder gives back, and nobody waits.
if #KEYS == 4 and ARGV[5] == '0' and redis.call('EXISTS', KEYS[4]) == 0 then
  local value = redis.call('GET', KEYS[3])
  if value and string.find(value, ARGV[4] .. ' ', 1, true) == 1 then
    redis.call('DEL', KEYS[3])
    return {1}
  end
  return {0}
end

-- @include _frame
-- @include _mutex

local replies = {}
for i = 1, (#KEYS - 2) / 2 do
  local lock, queue = KEYS[2 * i + 1], KEYS[2 * i + 2]
  local rid = ARGV[2 * i + 2]
  local owner = ownerOf(redis.call('GET', lock))
  if owner == rid then
    if redis.call('EXISTS', queue) == 0 then
      redis.call('DEL', lock)
      replies[i] = 1
    else
      replies[i] = handOver(lock, queue) and 2 or 1
    end
  else
    replies[i] = redis.call('ZREM', queue, rid) == 1 and 3 or 0
    -- Its lease had run out, or that of another: whoever comes by sees to the queue.
    if not owner and redis.call('EXISTS', queue) == 1 then handOver(lock, queue) end
  end
  if ARGV[2 * i + 3] == '1' then rememberGone(rid) end
end
keepMinted()
return replies
