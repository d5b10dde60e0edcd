--[[
  Takes free units out of the sale for the house: all of them or none. The same hold again takes nothing.

  KEYS[1..3]  gate, items, house
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..4]  item id, units, hold id

  Returns 'held', or 'short': not that many are free, or no such item; or a number: the epoch in force, which is not the
  caller's, 0 if there is none.
]]
-- @include _epoch
-- @include _item

local number, units = numberOf(KEYS[2], ARGV[2]), tonumber(ARGV[3])
if not number then return 'short' end
local standing = redis.call('HGET', KEYS[3], ARGV[4])
if standing then
  if string.match(standing, '^%d+') ~= tostring(number) then error('house-hold: this hold is of another item') end
  return 'held'
end
local k = ':' .. number
local held = redis.call('HMGET', KEYS[2], 't' .. k, 'b' .. k, 'h' .. k, 'o' .. k)
if held[1] - held[2] - held[3] - held[4] < units then return 'short' end
local time = redis.call('TIME')
local nowMs = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[3], ARGV[4], number .. ' ' .. ARGV[3] .. ' ' .. nowMs)
redis.call('HINCRBY', KEYS[2], 'o' .. k, units)
return 'held'
