--[[
  A batch is decided: its entries leave the stream, and in the same step those of its messages that the ledger cannot take
  go where they are tried again, or to the dead letters. A message is never in none of these places.

  Who wakes up late, after another has claimed and decided the same entries, changes nothing: a message is moved only with
  an entry that is still there. So this may be sent again when its reply was lost.

  KEYS[1]  stream
  KEYS[2]  retry
  KEYS[3]  dead
  ARGV[1]  how many entries
  ARGV[2…] their ids
  then for each message that is moved
    the number of its entry above (1 …)
    'retry'   and: in how many ms it is due, what stands in the set for it
    'dead'    and: the id of the letter, the letter (JSON without its opening brace: the time of death comes first)

  Returns how many entries left by this call.
]]
local stream, retry, dead = KEYS[1], KEYS[2], KEYS[3]
local last = tonumber(ARGV[1]) + 1

redis.call('XACK', stream, 'ledger', unpack(ARGV, 2, last))
if #ARGV == last then return redis.call('XDEL', stream, unpack(ARGV, 2, last)) end

local left, ours = 0, {}
for i = 2, last do
  ours[i - 1] = redis.call('XDEL', stream, ARGV[i]) == 1
  if ours[i - 1] then left = left + 1 end
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
return left
