-- Included, behind _seats, by the commands that end a hold of the house. Holds are `<item number> <units> <taken at, in ms>`, and of seats
-- ` s<seats with dots>` follows. Ends the hold if it is there and of this item, and leaves its seats. Returns its units, or nil.
local function leaveHouse(house, holdId, number)
  local standing = redis.call('HGET', house, holdId)
  local item, units, seats = string.match(standing or '', '^(%d+) (%d+) %d+ ?s?([%d.]*)$')
  if item ~= tostring(number) then return nil end
  redis.call('HDEL', house, holdId)
  if seats ~= '' then
    local hall = hallOf(number)
    leaveSeats(hall, seatsIn(hall, seats))
  end
  return tonumber(units)
end
