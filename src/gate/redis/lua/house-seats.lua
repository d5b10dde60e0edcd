--[[
  Holds free seats for the house: all of them or none. The same hold again takes nothing.

  KEYS[1..6]  gate, items, holds, house, seats, changes
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..3]  item id, hold id
  ARGV[4]     seats with dots
  ARGV[5..6]  order id and buyer of an order whose own seats are left to it, or nothing
  ARGV[7]     1 if seats that are blocked already are not in the way

  Returns {'held'}; {'taken', seats with dots}; {'stale'}: no such item; or a number: the epoch in force, which is not the
  caller's, 0 if there is none.
]]
local ITEMS, SEATS, CHANGES = KEYS[2], KEYS[5], KEYS[6]

-- @include _epoch
-- @include _item
-- @include _holds
-- @include _seats

local number = numberOf(ITEMS, ARGV[2])
local hall = number and hallOf(number)
if not hall then return { 'stale' } end
local standing = redis.call('HGET', KEYS[4], ARGV[3])
if standing then
  if string.match(standing, '^%d+') ~= tostring(number) then error('house-seats: this hold is of another item') end
  return { 'held' }
end
local seats, own = seatsIn(hall, ARGV[4]), {}
local mine = ARGV[5] ~= '' and redis.call('HGET', KEYS[3], ARGV[6])
if mine then
  mine = wholeHolds(mine)
  local at, of, _, slots = holdIn(mine, ARGV[5])
  if at and of == tostring(number) then
    for _, seat in ipairs(seatsIn(hall, (seatsOfHold(mine, at, ARGV[5], of, slots)))) do own[seat] = true end
  end
end
local wanted, taken = {}, {}
for _, seat in ipairs(seats) do
  local letter = string.lower(letterAt(hall, seat))
  if not own[seat] and not (ARGV[7] == '1' and letter == 'b') then
    wanted[#wanted + 1] = seat
    if letter ~= 'f' then taken[#taken + 1] = seat end
  end
end
if #taken > 0 then return { 'taken', table.concat(taken, '.') } end
takeSeats(hall, wanted, HOLD)
noteChanges(hall)
local time = redis.call('TIME')
local nowMs = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[4], ARGV[3], number .. ' ' .. #wanted .. ' ' .. nowMs .. ' s' .. table.concat(wanted, '.'))
redis.call('HINCRBY', ITEMS, 'o:' .. number, #wanted)
writeSeats()
return { 'held' }
