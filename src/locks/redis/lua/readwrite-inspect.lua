--[[
  Shows a read-write lock.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..7]  writer, readers, details, read-queue, write-queue (see _readwrite.lua)

  Returns as mutex-inspect.lua does.
]]
-- @include _frame
-- @include _readwrite

use(3)
local holders, waiters = {}, {}
local function add(list, parts)
  for _, part in ipairs(parts) do list[#list + 1] = part end
end

local rid, token, since, info = string.match(redis.call('GET', writerKey) or '', '^(%S+) (%d+) (%d+) (.*)$')
if rid then add(holders, {rid, 'write', token, '1', since, digits(redis.call('PTTL', writerKey)), info}) end
local readers = redis.call('ZRANGEBYSCORE', readersKey, '(' .. digits(nowMs()), '+inf', 'WITHSCORES')
for i = 1, #readers, 2 do
  token, since, info = string.match(redis.call('HGET', detailsKey, readers[i]) or '0 0 ', '^(%d+) (%d+) (.*)$')
  add(holders, {readers[i], 'read', token, '1', since, digits(readers[i + 1] - nowMs()), info})
end

local queued = {}
for mode, queue in pairs({read = readQueue, write = writeQueue}) do
  local first = redis.call('ZRANGE', queue, 0, 99, 'WITHSCORES')
  for i = 1, #first, 2 do queued[#queued + 1] = {first[i], mode, '1', first[i + 1]} end
end
table.sort(queued, function(one, other) return tonumber(one[4]) < tonumber(other[4]) end)
for i = 1, math.min(#queued, 100) do add(waiters, queued[i]) end
return {nowMs(), -1, redis.call('ZCARD', readQueue) + redis.call('ZCARD', writeQueue), holders, waiters}
