--[[
  Turns a read hold into the write hold (upgrade), or the write hold into a read hold (downgrade). Idempotent by the new
  request id.

  An upgrade is had at once by a reader that is alone; another waits until it is alone, keeping its read hold, ahead of
  every waiting writer. A second reader that asks meanwhile is refused at once: the two would wait for each other.
  A downgrade lets in the readers that wait, and keeps its token.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3..7]  writer, readers, details, read-queue, write-queue (see _readwrite.lua)
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     rid of the hold
  ARGV[5]     rid it has afterwards
  ARGV[6]     write or read: what it is to become
  ARGV[7]     lease ms
  ARGV[8]     1 to wait
  ARGV[9]     info

  Returns
    token             granted
    {0, retry ms, 0}  waits until it is alone
    {-1}              refused: another reader waits to upgrade, or it may not wait
    {-2}              not ours any more
]]
-- @include _frame
-- @include _readwrite

use(3)
local rid, nextRid, leaseMs, info = ARGV[4], ARGV[5], tonumber(ARGV[7]), ARGV[9]

local function upgrade()
  local owner, token = writerOf()
  if owner == nextRid then
    redis.call('PEXPIRE', writerKey, math.max(leaseMs, redis.call('PTTL', writerKey)))
    return tonumber(token)
  end
  if not redis.call('ZSCORE', readersKey, rid) then return {-2} end
  local readRid, writeRid = upgradeOf()
  -- One that died while it waited is in nobody's way.
  if readRid and readRid ~= rid and lives(writeRid) then return {-1} end
  if redis.call('ZCARD', readersKey) == 1 then
    -- Should its reply be lost, the reader believes in its old lease.
    local leftMs = tonumber(redis.call('ZSCORE', readersKey, rid)) - nowMs()
    dropReader(rid)
    return setWriter(nextRid, mint(), math.max(leaseMs, leftMs), info)
  end
  if ARGV[8] ~= '1' then return {-1} end
  redis.call('HSET', detailsKey, '!upgrade', rid .. ' ' .. nextRid)
  return {0, retryMs(), 0}
end

local function downgrade()
  local details = redis.call('HGET', detailsKey, nextRid)
  if details then
    -- Sent again: the client reckons its deadline from this sending.
    extendReader(nextRid, leaseMs)
    return tonumber(string.match(details, '^%d+'))
  end
  local owner, token = writerOf()
  if owner ~= rid then return {-2} end
  redis.call('DEL', writerKey)
  setReader(nextRid, tonumber(token), leaseMs, info)
  admitReaders()
  return tonumber(token)
end

purge()
-- A late copy of a change that was given up must not come true for nobody.
if isGone(nextRid) then return {-2} end
local reply = ARGV[6] == 'write' and upgrade() or downgrade()
keepMinted()
return reply
