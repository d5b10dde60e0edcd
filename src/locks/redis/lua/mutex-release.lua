--[[
  Gives a mutex (also fair, once) back, or leaves its queue. Handed to the next waiter that lives in the same step.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[2i+1..]   for request i: lock, queue
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[3i+1..]   for request i: rid, 1 to remember the id as gone, and a request of the same client that is to have it
                 next if it waits ('' whoever is first)

  Returns for each request, or, for one alone, the bare number
    1  released, nobody waits
    2  released and handed to somebody who has yet to confirm
    3  left the queue
    0  neither held nor queued
    4  not held, and somebody else was let in who has yet to confirm
    token  released, and the request that was to have it next has it
]]

-- What happens nearly always, before anything else is even defined: one holder gives back, and nobody waits, or the first
-- who waits lives. Everything else goes the long way below.
if #KEYS == 4 and ARGV[5] == '0' then
  local clock, lock, queue = KEYS[1], KEYS[3], KEYS[4]
  local value = redis.call('GET', lock)
  if value and string.find(value, ARGV[4] .. ' ', 1, true) == 1 then
    local next = ARGV[6] ~= '' and redis.call('ZREM', queue, ARGV[6]) == 1 and ARGV[6]
    local head = next or redis.call('ZPOPMIN', queue)[1]
    if not head then
      redis.call('DEL', lock)
      return 1
    end
    local time = redis.call('TIME')
    local seconds, fraction = time[1], time[2]
    if #fraction < 6 then fraction = string.sub('00000' .. fraction, -6) end
    local now = seconds .. fraction
    local token = now
    local last = redis.call('SET', clock, token, 'GET')
    if last and last >= token then
      token = string.format('%.0f', last + 1)
      redis.call('SET', clock, token)
    end
    if next then
      redis.call('SET', lock, next .. ' ' .. token .. ' ' .. seconds .. string.sub(fraction, 1, 3) .. ' ', 'PX', ARGV[3])
      return tonumber(token)
    end
    local channel = ARGV[1] .. string.match(head, '^[^.]+')
    -- Not by what PUBLISH returns: that counts those who listen to every channel, too.
    if ARGV[2] == 'SPUBLISH' or redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
      value = head .. ' ' .. token .. ' ' .. seconds .. string.sub(fraction, 1, 3) .. ' '
      redis.call('SET', lock, value, 'PX', ARGV[3])
      if redis.call(ARGV[2], channel, 'granted ' .. head .. ' ' .. token .. ' ' .. now) > 0 then return 2 end
      -- As it was.
      redis.call('SET', lock, ARGV[4] .. ' 0 0 ', 'PX', ARGV[3])
    end
    -- Nobody listens there: the lock is still the caller's, and the next in the queue is looked for below.
  end
end

-- @include _frame
-- @include _mutex

local replies = {}
for i = 1, (#KEYS - 2) / 2 do
  local lock, queue = KEYS[2 * i + 1], KEYS[2 * i + 2]
  local rid, nextRid = ARGV[3 * i + 1], ARGV[3 * i + 3]
  local owner = ownerOf(redis.call('GET', lock))
  if owner == rid then
    if redis.call('EXISTS', queue) == 0 then
      redis.call('DEL', lock)
      replies[i] = 1
    elseif nextRid ~= '' and redis.call('ZREM', queue, nextRid) == 1 then
      replies[i] = hold(lock, nextRid, graceMs, '')
    else
      replies[i] = handOver(lock, queue) and 2 or 1
    end
  else
    replies[i] = redis.call('ZREM', queue, rid) == 1 and 3 or 0
    -- Its lease had run out, or that of another: whoever comes by sees to the queue.
    if not owner and redis.call('EXISTS', queue) == 1 and handOver(lock, queue) then replies[i] = 4 end
  end
  if ARGV[3 * i + 2] == '1' then rememberGone(rid) end
end
keepMinted()
return replies
