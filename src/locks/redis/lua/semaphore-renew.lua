--[[
  Makes the lease of held permits last `lease ms` from now; confirms a hand-over. Permits that came back are not taken
  again.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[4i-1..]   for request i: holders, details, queue, size (see _semaphore.lua)
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[4i..]     for request i: rid, lease ms, info ('' leaves it as it is), 1 to make it shorter if need be

  Returns {0, reply of request 1, …}; a reply is
    1  renewed
    0  not ours any more
]]
-- @include _frame
-- @include _semaphore

local function renew(i)
  local rid, leaseMs, info = ARGV[4 * i], tonumber(ARGV[4 * i + 1]), ARGV[4 * i + 2]
  use(4 * i - 1, '0')
  purge()
  local details = redis.call('HGET', detailsKey, rid)
  if not details then return 0 end
  extendTo(rid, leaseMs, ARGV[4 * i + 3])
  if info ~= '' then redis.call('HSET', detailsKey, rid, string.match(details, '^%d+ %d+ %d+ ') .. info) end
  return 1
end

local replies = {0}
for i = 1, (#KEYS - 2) / 4 do replies[i + 1] = guarded(renew, i) end
return replies
