-- Included, behind _seats, by the commands that end a hold of the house. Holds are `<item number> <units> <taken at, in ms>`, and of seats
-- ` s<seats with dots>` follows. Ends the hold if it is there and of this item, and leaves its seats. Returns whether it was.
local function leaveHouse(house, holdId, number)
  local standing = redis.call('HGET', house, holdId)
  local item, units, seats = string.match(standing or '', '^(%d+) (%d+) %d+ ?s?([%d.]*)$')
  if item ~= tostring(number) then return false end
  redis.call('HDEL', house, holdId)
  -- A hold whose seats were all the order's own has none.
  if units ~= '0' then redis.call('HINCRBY', ITEMS, 'o:' .. number, '-' .. units) end
  if seats ~= '' then
    local hall = hallOf(number)
    leaveSeats(hall, seatsIn(hall, seats))
  end
  return true
end
