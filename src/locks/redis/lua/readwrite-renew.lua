--[[
  Makes the lease of a read or write hold last `lease ms` from now; confirms a hand-over. Each reader has its own.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[5i-2..]   for request i: writer, readers, details, read-queue, write-queue (see _readwrite.lua)
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[5i-1..]   for request i: rid, lease ms, info ('' leaves it as it is), 1 to make it shorter if need be,
                 read or write

  Returns {0, reply of request 1, …}; a reply is
    1  renewed
    0  not ours any more
]]
-- @include _frame
-- @include _readwrite

local function renew(rid, leaseMs, info, exactly, mode)
  if mode == 'read' then
    purge()
    local details = redis.call('HGET', detailsKey, rid)
    if not details then return 0 end
    extendReader(rid, leaseMs, exactly)
    if info ~= '' then redis.call('HSET', detailsKey, rid, string.match(details, '^%d+ %d+ ') .. info) end
    return 1
  end
  local value = redis.call('GET', writerKey)
  if string.match(value or '', '^%S+') ~= rid then return 0 end
  if exactly ~= '1' then leaseMs = math.max(leaseMs, redis.call('PTTL', writerKey)) end
  redis.call('PEXPIRE', writerKey, leaseMs)
  if info ~= '' then redis.call('SET', writerKey, string.match(value, '^%S+ %d+ %d+ ') .. info, 'PX', leaseMs) end
  return 1
end

local replies = {0}
for i = 1, (#KEYS - 2) / 5 do
  use(5 * i - 2)
  local a = 5 * i - 1
  replies[i + 1] = guarded(renew, ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], ARGV[a + 4])
end
return replies
