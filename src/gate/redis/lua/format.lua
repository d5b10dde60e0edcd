--[[
  Records that a process runs and up to which format it reads, and returns the format in force. Raises that format when every
  process that runs reads a higher one.

  KEYS[1]  format, a hash:
             format        the format in force
             since         when the first process was recorded, in ms
             fresh         the first process found nothing under the prefix
             process:<id>  `<newest format that the process reads> <when it last said so, in ms>`
  ARGV[1]  the process
  ARGV[2]  the oldest format that it reads
  ARGV[3]  the newest format that it reads
  ARGV[4]  the format in force where Redis does not know it
  ARGV[5]  a process that was silent for so many ms has ended
  ARGV[6]  the format that this process needs for what it is about to write, or 0
  ARGV[7]  1 if nothing is under the prefix yet, as far as the process knows

  Returns the format in force. A process that cannot read it is not recorded.
]]
local key, me = KEYS[1], 'process:' .. ARGV[1]
local oldest, newest, silentMs = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

local inForce, since, lowest, fresh = tonumber(ARGV[4]), nowMs, newest, false
local ended = {}
local known = redis.call('HGETALL', key)
for i = 1, #known, 2 do
  local field, value = known[i], known[i + 1]
  if field == 'format' then inForce = tonumber(value)
  elseif field == 'since' then since = tonumber(value)
  elseif field == 'fresh' then fresh = true
  elseif field ~= me then
    local reads, heardMs = string.match(value, '^(%d+) (%d+)$')
    if not reads or nowMs - heardMs > silentMs then ended[#ended + 1] = field
    else lowest = math.min(lowest, tonumber(reads)) end
  end
end
if inForce < oldest or inForce > newest then return inForce end

-- A Redis that was emptied has forgotten its processes too: it raises nothing before each had time to come back.
if lowest > inForce and nowMs - since >= silentMs then inForce = lowest end
-- Under a prefix that began with processes that are all known, nobody else has to be waited for.
if #known == 0 and ARGV[7] == '1' then
  fresh = true
  redis.call('HSET', key, 'fresh', 1)
end
local needed = tonumber(ARGV[6])
if fresh and needed > inForce and lowest >= needed then inForce = needed end
if #ended > 0 then redis.call('HDEL', key, unpack(ended)) end
redis.call('HSET', key, 'format', inForce, 'since', string.format('%.0f', since), me,
  newest .. ' ' .. string.format('%.0f', nowMs))
return inForce
