--[[
  Holds of the house.

  KEYS[1..3]  gate, items, house
  ARGV[1]     the epoch that the caller believes in force

  Returns for each hold `<hold id>\n<item id>\n<age in ms>`; or a number: the epoch in force, which is not the caller's, 0
  if there is none.
]]
-- @include _epoch

local holds, list = redis.call('HGETALL', KEYS[3]), {}
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #holds, 2 do
  local number, takenAt = string.match(holds[i + 1], '^(%d+) %d+ (%d+)')
  local itemId = string.match(redis.call('HGET', KEYS[2], 's:' .. number), '^%S+')
  list[#list + 1] = holds[i] .. '\n' .. itemId .. '\n' .. string.format('%.0f', nowMs - takenAt)
end
return list
