--[[
  A batch is decided: its entries leave the stream, and in the same step those of its messages that the ledger cannot take
  go to the retries, or to the dead letters. A message is always in one of these places.

  A worker that wakes up late, after another has claimed and decided the same entries, changes nothing: a message is moved only
  if its entry is still there. So the call may be repeated when its reply was lost. If Redis has lost the stream, a message is moved
  without its entry: it may have come through a broker, and exist nowhere else.

  KEYS[1]  stream
  KEYS[2]  retry
  KEYS[3]  dead
  KEYS[4]  epochs
  KEYS[5]  decided
  ARGV[1]  the group that was given the entries
  ARGV[2]  the stream's epoch
  ARGV[3]  how many entries
  ARGV[4]  how many of their messages are decided, and not moved
  ARGV[5…] their ids
  then for each message that is moved
    the number of its entry above (1 …)
    'retry'   and: in how many ms it is due, what stands in the set for it
    'dead'    and: the id of the letter, the letter (JSON without its opening brace: the time of death comes first)

  Returns how many entries left by this call.
]]
local stream, retry, dead = KEYS[1], KEYS[2], KEYS[3]
local last = tonumber(ARGV[3]) + 4

-- By this counter a rebuild sees that the pipe makes progress. Entries that were gone do not count: perhaps their channel is gone too.
local function leave(left)
  if left > 0 and ARGV[4] ~= '0' then redis.call('INCRBY', KEYS[5], ARGV[4]) end
  return left
end

redis.call('XACK', stream, ARGV[1], unpack(ARGV, 5, last))
if #ARGV == last then return leave(redis.call('XDEL', stream, unpack(ARGV, 5, last))) end

local left, ours = 0, {}
local forgotten = redis.call('SISMEMBER', KEYS[4], ARGV[2]) == 0
for i = 5, last do
  local there = redis.call('XDEL', stream, ARGV[i]) == 1
  if there then left = left + 1 end
  ours[i - 4] = there or forgotten
end
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
for i = last + 1, #ARGV, 4 do
  if ours[tonumber(ARGV[i])] then
    if ARGV[i + 1] == 'retry' then
      redis.call('ZADD', retry, string.format('%.0f', nowMs + tonumber(ARGV[i + 2])), ARGV[i + 3])
    else
      redis.call('HSET', dead, ARGV[i + 2], string.format('{"diedAtMs":%.0f,', nowMs) .. ARGV[i + 3])
    end
  end
end
return leave(left)
