--[[
  The ledger has moved an order to other seats: its hold has those from now on, unless the gate was built later than that or knows
  of a later move. The hold of the house that was taken for it ends in the same step, whatever the rev.

  KEYS[1..6]  gate, items, holds, house, seats, changes
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..4]  item id, order id, buyer
  ARGV[5]     the new seats with dots
  ARGV[6]     rev
  ARGV[7]     hold id

  Returns text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
local ITEMS, SEATS, CHANGES = KEYS[2], KEYS[5], KEYS[6]

-- @include _epoch
-- @include _item
-- @include _holds
-- @include _seats
-- @include _house

local number = numberOf(ITEMS, ARGV[2])
local hall = number and hallOf(number)
if not hall then return 'none' end
local to, rev, orderId, buyer = seatsIn(hall, ARGV[5]), tonumber(ARGV[6]), ARGV[3], ARGV[4]
local builtRev = tonumber(redis.call('HGET', ITEMS, 'm:' .. number))
local mine = redis.call('HGET', KEYS[3], buyer)
local at, of, _, slots
if mine then
  mine = wholeHolds(mine)
  at, of, _, slots = holdIn(mine, orderId)
end
leaveHouse(KEYS[4], ARGV[7], number)
local said = 'none'
if at and of == tostring(number) then
  local seats, movedRev, last = seatsOfHold(mine, at, orderId, of, slots)
  said = 'old'
  if rev > builtRev and rev > tonumber(movedRev == '' and 0 or movedRev) then
    said = 'moved'
    local from = seatsIn(hall, seats)
    local stays, leaves, takes = {}, {}, {}
    for _, seat in ipairs(to) do stays[seat] = true end
    for _, seat in ipairs(from) do
      if not stays[seat] then leaves[#leaves + 1] = seat end
      stays[seat] = stays[seat] and 'both'
    end
    for _, seat in ipairs(to) do
      if stays[seat] ~= 'both' then takes[#takes + 1] = seat end
    end
    local sold = shown(letterAt(hall, from[1])) == 's'
    leaveSeats(hall, leaves)
    takeSeats(hall, takes, sold and RESERVE_SOLD or RESERVE)
    local slotsEnd = at + #orderId + #of + #slots + 3
    redis.call('HSET', KEYS[3], buyer,
      string.sub(mine, 1, slotsEnd) .. ',' .. ARGV[5] .. '@' .. ARGV[6] .. string.sub(mine, last + 1))
  end
end
noteChanges(hall)
writeSeats()
return said
