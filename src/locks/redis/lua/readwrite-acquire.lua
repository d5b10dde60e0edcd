--[[
  Takes a read-write lock to read or to write, or joins its queue. Idempotent by request id, and sees to a silent queue
  (see mutex-serve.lua).

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[5i-2..]   for request i: writer, readers, details, read-queue, write-queue (see _readwrite.lua)
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[5i-1..]   for request i: rid, lease ms, place ('' do not queue, 0 a new one, else the ticket it had), info,
                 read or write

  Returns {TIME in microseconds, reply of request 1, …}; a reply is
    token                    granted
    {0, retry ms, ticket, 1 if it had lost its place}
                             in the queue; something may change by itself after `retry ms`
    {-1, retry ms}           held, not queued
    {-2}                     this request was given up before
]]
-- @include _frame
-- @include _readwrite

local function mayEnter(mode)
  if redis.call('EXISTS', writerKey) == 1 or upgradeOf() then return false end
  if mode == 'read' then return not writerWaits() end
  return redis.call('EXISTS', readersKey, readQueue, writeQueue) == 0
end

local function enter(mode, rid, leaseMs, info)
  if mode == 'read' then return setReader(rid, mint(), leaseMs, info) end
  return setWriter(rid, mint(), leaseMs, info)
end

local function acquire(rid, leaseMs, place, info, mode)
  purge()
  if mode == 'read' then
    local details = redis.call('HGET', detailsKey, rid)
    if details then
      extendReader(rid, leaseMs)
      return tonumber(string.match(details, '^%d+'))
    end
  else
    local owner, token = writerOf()
    if owner == rid then
      redis.call('PEXPIRE', writerKey, math.max(leaseMs, redis.call('PTTL', writerKey)))
      return tonumber(token)
    end
  end
  if isGone(rid) then return {-2} end
  local _, wish = upgradeOf()
  if wish == rid then return place ~= '' and {0, retryMs(), 0, 0} or {-1, retryMs()} end

  if mayEnter(mode) then
    -- Behind a writer that died waiting there may be readers, too.
    if mode == 'read' and redis.call('EXISTS', readQueue) == 1 then settle(nil) end
    redis.call('ZREM', mode == 'read' and readQueue or writeQueue, rid)
    if granted[rid] then return setReader(rid, granted[rid], leaseMs, info) end
    return enter(mode, rid, leaseMs, info)
  end
  local wantsQueue = place ~= ''
  local ticket, rejoined
  if wantsQueue then ticket, rejoined = enqueue(mode == 'read' and readQueue or writeQueue, rid, place) end
  settle(nil)
  if granted[rid] then
    return mode == 'read' and setReader(rid, granted[rid], leaseMs, info) or setWriter(rid, granted[rid], leaseMs, info)
  end
  if not wantsQueue and mayEnter(mode) then return enter(mode, rid, leaseMs, info) end
  if wantsQueue then return {0, retryMs(), ticket, rejoined} end
  return {-1, retryMs()}
end

local replies = {nowUs()}
for i = 1, (#KEYS - 2) / 5 do
  use(5 * i - 2)
  local a = 5 * i - 1
  asker = ARGV[a]
  replies[i + 1] = guarded(acquire, ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], ARGV[a + 4])
end
keepMinted()
return replies
