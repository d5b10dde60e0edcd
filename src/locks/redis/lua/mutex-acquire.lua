--[[
  Takes a mutex (also fair), or joins its queue. Idempotent by request id: sent again it gives the same grant, or the same
  place in the queue. Also the way a waiter looks after a silent queue: a lock whose lease is over goes to the first
  waiter that lives.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[2i+1..]   for request i: lock, queue
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[4i..]     for request i: rid, lease ms, place ('' do not queue, 0 a new one, else the ticket it had), info

  Returns {TIME in microseconds, reply of request 1, …}; a reply is
    token                    granted
    {0, retry ms, ticket}    in the queue; the present lease ends after `retry ms`
    {-1, retry ms}           held, not queued
    {-2}                     this request was given up before
]]

-- What happens nearly always, before anything else is even defined: one request for a lock that nobody has or waits for.
if #KEYS == 4 and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0 then
  local time = redis.call('TIME')
  local seconds, fraction = time[1], time[2]
  if #fraction < 6 then fraction = string.sub('00000' .. fraction, -6) end
  local token = seconds .. fraction
  -- Numbers of sixteen digits both: compared as text they compare as numbers.
  local last = redis.call('SET', KEYS[1], token, 'GET')
  if last and last >= token then
    token = string.format('%.0f', last + 1)
    redis.call('SET', KEYS[1], token)
  end
  local value = ARGV[4] .. ' ' .. token .. ' ' .. seconds .. string.sub(fraction, 1, 3) .. ' ' .. ARGV[7]
  redis.call('SET', KEYS[3], value, 'PX', ARGV[5])
  return {seconds .. fraction, tonumber(token)}
end

-- @include _frame
-- @include _mutex
-- @include _mutex-take

local replies = {nowUs()}
for i = 1, (#KEYS - 2) / 2 do replies[i + 1] = take(KEYS[2 * i + 1], KEYS[2 * i + 2], 4 * i) end
keepMinted()
return replies
