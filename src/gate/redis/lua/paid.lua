--[[
  The ledger has these orders as paid: their seats are sold. Does nothing without a hold, for counted items, or when repeated.

  KEYS[1..5]  gate, items, holds, seats, changes
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2]     n: how many orders
  then        n order ids, n buyers

  Returns text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
local ITEMS, SEATS, CHANGES = KEYS[2], KEYS[4], KEYS[5]

-- @include _epoch
-- @include _holds
-- @include _seats

local n = tonumber(ARGV[2])
if #ARGV ~= 2 + 2 * n then error('paid: arguments are missing') end
local holds = redis.call('HMGET', KEYS[3], unpack(ARGV, 3 + n, 2 + 2 * n))
for i = 1, n do
  local orderId, mine = ARGV[2 + i], holds[i]
  local at, number, _, slots
  if mine then
    mine = wholeHolds(mine)
    at, number, _, slots = holdIn(mine, orderId)
  end
  local seats = at and seatsOfHold(mine, at, orderId, number, slots)
  if seats then
    local hall = hallOf(number)
    for _, seat in ipairs(seatsIn(hall, seats)) do
      local letter = SELL[letterAt(hall, seat)]
      if letter then setLetter(hall, seat, letter) end
    end
    noteChanges(hall)
  end
end
writeSeats()
return 'done'
