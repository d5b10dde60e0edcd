--[[
  Ends a `once` that was run: stores its result, frees it, and wakes everybody who waits for it. Only by the one who holds
  it: a runner that lost it stores nothing. Idempotent by request id.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..5]  lock, queue, result; result is `<rid> <what fn returned>`
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     rid
  ARGV[5]     result
  ARGV[6]     for how many ms it is kept

  Returns
    1  stored
    0  not ours any more
]]
-- @include _frame
-- @include _mutex

local rid = ARGV[4]
if ownerOf(redis.call('GET', KEYS[3])) ~= rid then
  return ownerOf(redis.call('GET', KEYS[5])) == rid and 1 or 0
end
redis.call('SET', KEYS[5], rid .. ' ' .. ARGV[5], 'PX', ARGV[6])
local waiting = redis.call('ZRANGE', KEYS[4], 0, -1)
redis.call('DEL', KEYS[3], KEYS[4])
for _, each in ipairs(waiting) do wake(each, 'look ' .. each) end
return 1
