--[[
  Makes the lease of held permits last `lease ms` from now; confirms a hand-over. Permits that came back are not taken
  again.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[4i-1..]   for request i: holders, details, queue, size (see _semaphore.lua)
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[3i+1..]   for request i: rid, lease ms, info ('' leaves it as it is)

  Returns for each request
    1  renewed
    0  not ours any more
]]
-- @include _frame
-- @include _semaphore

local replies = {}
for i = 1, (#KEYS - 2) / 4 do
  local rid, leaseMs, info = ARGV[3 * i + 1], tonumber(ARGV[3 * i + 2]), ARGV[3 * i + 3]
  use(4 * i - 1, '0')
  purge()
  local details = redis.call('HGET', detailsKey, rid)
  replies[i] = details and 1 or 0
  if details then
    extendTo(rid, leaseMs)
    if info ~= '' then redis.call('HSET', detailsKey, rid, string.match(details, '^%d+ %d+ %d+ ') .. info) end
  end
end
return replies
