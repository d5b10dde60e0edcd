--[[
  Ends a hold of the house, if it is there. The lowered total comes into force in the same step, and also without the
  hold: the gate may have been rebuilt from a ledger that had not lowered it.

  KEYS[1..3]  gate, items, house
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..3]  item id, hold id
  ARGV[4..5]  total and rev, or nothing

  Returns text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
-- @include _epoch
-- @include _item

local number = numberOf(KEYS[2], ARGV[2])
if not number then return 'none' end
local k = ':' .. number
if ARGV[4] ~= '' and tonumber(ARGV[5]) > tonumber(redis.call('HGET', KEYS[2], 'r' .. k)) then
  redis.call('HSET', KEYS[2], 't' .. k, ARGV[4], 'r' .. k, ARGV[5])
end
local standing = redis.call('HGET', KEYS[3], ARGV[3])
if not standing then return 'none' end
local item, units = string.match(standing, '^(%d+) (%d+)')
if item ~= tostring(number) then return 'none' end
redis.call('HDEL', KEYS[3], ARGV[3])
redis.call('HINCRBY', KEYS[2], 'o' .. k, -units)
return 'dropped'
