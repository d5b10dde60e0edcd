--[[
  Counts a latch down, not below 0, once for each request id; at 0 everybody who waits is woken.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..5]  count, counted, waiters (see latch-set.lua)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     rid
  ARGV[5]     by how much
  ARGV[6]     for how many ms the latch is kept from now

  Returns what is left; 0 also where there is no latch.
]]
-- @include _frame

local count = tonumber(redis.call('GET', KEYS[3]) or '0')
if count == 0 or redis.call('SADD', KEYS[4], ARGV[4]) == 0 then return count end
count = math.max(0, count - ARGV[5])
redis.call('SET', KEYS[3], count, 'PX', ARGV[6])
redis.call('PEXPIRE', KEYS[4], ARGV[6])
if count == 0 then
  local waiting = redis.call('ZRANGE', KEYS[5], 0, -1)
  redis.call('DEL', KEYS[5])
  for _, rid in ipairs(waiting) do wake(rid, 'look ' .. rid) end
end
return count
