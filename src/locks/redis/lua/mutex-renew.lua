--[[
  Makes the lease of a mutex (also fair, once) last `lease ms` from now; confirms a hand-over. Never takes a lock again
  that was lost.

  KEYS[1..2]  clock, gone (not used here; every batch begins with them)
  KEYS[i+2]   for request i: lock
  ARGV[1..3]  channel, publish, grace (not used here)
  ARGV[4i..]  for request i: rid, lease ms, info ('' leaves it as it is), 1 to make it shorter if need be

  Returns {0, reply of request 1, …}; a reply is
    1  renewed
    0  not ours any more
]]
-- @include _frame
-- @include _mutex

local function renew(i)
  local lock, rid, leaseMs, info = KEYS[i + 2], ARGV[4 * i], tonumber(ARGV[4 * i + 1]), ARGV[4 * i + 2]
  local value = redis.call('GET', lock)
  if ownerOf(value) ~= rid then return 0 end
  if ARGV[4 * i + 3] == '0' then leaseMs = math.max(leaseMs, redis.call('PTTL', lock)) end
  redis.call('PEXPIRE', lock, leaseMs)
  if info ~= '' then redis.call('SET', lock, string.match(value, '^%S+ %d+ %d+ ') .. info, 'PX', leaseMs) end
  return 1
end

local replies = {0}
for i = 1, #KEYS - 2 do replies[i + 1] = guarded(renew, i) end
return replies
