--[[
  Takes a mutex (also fair), or joins its queue. Idempotent by request id: sent again it gives the same grant, or the same
  place in the queue. Also the way a waiter looks after a silent queue: a lock whose lease is over goes to the first
  waiter that lives.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[2i+1..]   for request i: lock, queue
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[4i..]     for request i: rid, lease ms, place ('' do not queue, 0 a new one, else the ticket it had), info

  Returns {TIME in microseconds, reply of request 1, …}, or, for one request that was granted, its token alone; a reply is
    token                    granted
    {0, retry ms, ticket, 1 if it had lost its place}
                             in the queue; the present lease ends after `retry ms`
    {-1, retry ms}           held, not queued
    {-2}                     this request was given up before
]]

-- What happens nearly always, before anything else is even defined (defining it costs as much as doing it): one request,
-- for a lock that is free, or that somebody else holds. Everything else goes the long way below.
if #KEYS == 4 then
  local clock, gone, lock, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local rid, leaseMs, place = ARGV[4], ARGV[5], ARGV[6]
  local known = redis.call('EXISTS', gone, lock, queue)
  local value = known > 0 and redis.call('GET', lock)
  local others = value and string.find(value, rid .. ' ', 1, true) ~= 1
  if known == 0 or (others and place == '0' and redis.call('EXISTS', gone) == 0) then
    local time = redis.call('TIME')
    local seconds, fraction = time[1], time[2]
    if #fraction < 6 then fraction = string.sub('00000' .. fraction, -6) end
    local now = seconds .. fraction
    local number = now
    -- Numbers of sixteen digits both: compared as text they compare as numbers.
    local last = redis.call('SET', clock, number, 'GET')
    if last and last >= number then
      number = string.format('%.0f', last + 1)
      redis.call('SET', clock, number)
    end
    if known == 0 then
      value = rid .. ' ' .. number .. ' ' .. seconds .. string.sub(fraction, 1, 3) .. ' ' .. ARGV[7]
      redis.call('SET', lock, value, 'PX', leaseMs)
      return tonumber(number)
    end
    if redis.call('ZADD', queue, 'NX', number, rid) == 0 then number = redis.call('ZSCORE', queue, rid) end
    -- See QUEUE_MS in _frame.lua.
    redis.call('PEXPIRE', queue, 60000)
    return {tonumber(now), {0, redis.call('PTTL', lock), tonumber(number)}}
  end
end

-- @include _frame
-- @include _mutex
-- @include _mutex-take

local replies = {nowUs()}
for i = 1, (#KEYS - 2) / 2 do replies[i + 1] = take(KEYS[2 * i + 1], KEYS[2 * i + 2], 4 * i) end
keepMinted()
return replies
