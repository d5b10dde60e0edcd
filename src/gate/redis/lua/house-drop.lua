--[[
  Ends a hold of the house, if it is there. The lowered total comes into force in the same step, and also without the
  hold: the gate may have been rebuilt from a ledger that had not lowered it.

  KEYS[1..5]  gate, items, house, seats, changes
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..3]  item id, hold id
  ARGV[4..5]  total and rev, or nothing

  Returns text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
local ITEMS, SEATS, CHANGES = KEYS[2], KEYS[4], KEYS[5]

-- @include _epoch
-- @include _item
-- @include _seats
-- @include _house

local number = numberOf(KEYS[2], ARGV[2])
if not number then return 'none' end
local k = ':' .. number
if ARGV[4] ~= '' and tonumber(ARGV[5]) > tonumber(redis.call('HGET', KEYS[2], 'r' .. k)) then
  redis.call('HSET', KEYS[2], 't' .. k, ARGV[4], 'r' .. k, ARGV[5])
end
if not leaveHouse(KEYS[3], ARGV[3], number) then return 'none' end
local hall = hallOf(number)
if hall then
  noteChanges(hall)
  writeSeats()
end
return 'dropped'
