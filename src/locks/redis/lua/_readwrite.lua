--[[
  Included by the commands of the read-write lock. Not a command of its own.

  Phase-fair: a waiting writer stops new readers; when a writer leaves, all readers that wait enter together; when the last
  reader leaves, the first writer enters. Nobody waits for more than one phase of the other kind.

  A lock is five keys:
    writer       string `<rid> <token> <since ms> <info>`, expiring at the end of the lease; absent when nobody writes
    readers      sorted set of the request ids that read, by the millisecond at which each lease ends
    details      hash: request id of a reader → `<token> <since ms> <info>`; `!upgrade` → `<read rid> <write rid>` of the
                 reader that waits until it is alone
    read-queue   sorted sets of waiting request ids by ticket
    write-queue
]]
local writerKey, readersKey, detailsKey, readQueue, writeQueue

local function use(first)
  writerKey, readersKey, detailsKey = KEYS[first], KEYS[first + 1], KEYS[first + 2]
  readQueue, writeQueue = KEYS[first + 3], KEYS[first + 4]
end

local function writerOf()
  return string.match(redis.call('GET', writerKey) or '', '^(%S+) (%d+)')
end

local function upgradeOf()
  return string.match(redis.call('HGET', detailsKey, '!upgrade') or '', '^(%S+) (%S+)$')
end

local function dropUpgrade()
  redis.call('HDEL', detailsKey, '!upgrade')
end

local function dropReader(rid)
  redis.call('HDEL', detailsKey, rid)
  if upgradeOf() == rid then dropUpgrade() end
  return redis.call('ZREM', readersKey, rid) == 1
end

-- Readers whose lease is over are readers no more.
local function purge()
  for _, rid in ipairs(redis.call('ZRANGEBYSCORE', readersKey, '-inf', nowMs())) do dropReader(rid) end
end

-- `exactly`: '1' if it may become shorter, too.
local function extendReader(rid, leaseMs, exactly)
  lastAtLeast(readersKey, leaseMs + 1000)
  lastAtLeast(detailsKey, leaseMs + 1000)
  local endMs = nowMs() + leaseMs
  if exactly ~= '1' then endMs = math.max(endMs, tonumber(redis.call('ZSCORE', readersKey, rid) or '0')) end
  redis.call('ZADD', readersKey, endMs, rid)
end

local function setReader(rid, token, leaseMs, info)
  redis.call('ZADD', readersKey, nowMs() + leaseMs, rid)
  redis.call('HSET', detailsKey, rid, digits(token) .. ' ' .. digits(nowMs()) .. ' ' .. info)
  lastAtLeast(readersKey, leaseMs + 1000)
  lastAtLeast(detailsKey, leaseMs + 1000)
  return token
end

local function setWriter(rid, token, leaseMs, info)
  redis.call('SET', writerKey, rid .. ' ' .. digits(token) .. ' ' .. digits(nowMs()) .. ' ' .. info, 'PX', leaseMs)
  return token
end

-- Whether a writer waits that still lives; dead ones at the head go.
local function writerWaits()
  while true do
    local head = redis.call('ZRANGE', writeQueue, 0, 0)[1]
    if not head then return false end
    if lives(head) then return true end
    redis.call('ZREM', writeQueue, head)
  end
end

-- Who was let in by this call: rid → token. `asker` reads its grant from the reply and is not told.
local granted, told, asker = {}, 0, nil

local function admitReaders()
  local waiting = redis.call('ZRANGE', readQueue, 0, -1)
  redis.call('DEL', readQueue)
  local admitted = false
  for _, rid in ipairs(waiting) do
    if rid == asker or lives(rid) then
      granted[rid] = setReader(rid, mint(), graceMs, '')
      admitted = true
      if rid ~= asker then
        wake(rid, grantMessage(rid, granted[rid]))
        told = told + 1
      end
    end
  end
  return admitted
end

local function admitWriter()
  while true do
    local head = redis.call('ZPOPMIN', writeQueue)[1]
    if not head then return false end
    if head == asker or lives(head) then
      granted[head] = setWriter(head, mint(), graceMs, '')
      if head ~= asker then
        wake(head, grantMessage(head, granted[head]))
        told = told + 1
      end
      return true
    end
  end
end

local function firstTicket(queue)
  return tonumber(redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2] or 'inf')
end

-- Lets in whoever may enter now. `left`: 'write' or 'read' when such a hold was just given back, else nil.
local function settle(left)
  if redis.call('EXISTS', writerKey) == 1 then return end
  local readers = redis.call('ZCARD', readersKey)

  local readRid, writeRid = upgradeOf()
  if readRid then
    if writeRid ~= asker and not lives(writeRid) then
      -- Only the wish goes: its read hold ends by its own lease.
      dropUpgrade()
    elseif readers > 1 then
      return
    else
      -- Until its read lease would have ended it may believe that, having heard of nothing.
      local leftMs = tonumber(redis.call('ZSCORE', readersKey, readRid)) - nowMs()
      dropReader(readRid)
      granted[writeRid] = setWriter(writeRid, mint(), math.max(graceMs, leftMs), '')
      if writeRid ~= asker then
        wake(writeRid, grantMessage(writeRid, granted[writeRid]))
        told = told + 1
      end
      return
    end
  end

  if readers > 0 then
    if not writerWaits() then admitReaders() end
    return
  end
  local readersFirst = left == 'write' or (left == nil and firstTicket(readQueue) < firstTicket(writeQueue))
  if readersFirst then
    if not admitReaders() then admitWriter() end
  else
    if not admitWriter() then admitReaders() end
  end
end

-- The shortest lease in force: nothing changes by itself before it ends.
local function retryMs()
  local writerMs = redis.call('PTTL', writerKey)
  if writerMs > 0 then return writerMs end
  local first = redis.call('ZRANGE', readersKey, 0, 0, 'WITHSCORES')[2]
  return first and math.max(1, tonumber(first) - nowMs()) or 50
end
