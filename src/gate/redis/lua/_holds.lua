--[[
  Included by the commands that read holds. Not a command of its own.

  All live holds of a buyer are one value: `<order id>,<item number>,<q or s>,<slots with dots>` joined by `;`, oldest
  first. q: queued, the ledger has not stored the order yet; s: settled. The most common hold (the first item, queued, slot 1) is
  stored as the order id alone. Of a seated item `,<seats with dots>` follows, and `@<rev>` behind it once the order was moved.
]]
local CROWD = ',1,q,1'

local function wholeHolds(mine)
  return string.find(mine, ',', 1, true) and mine or mine .. CROWD
end

-- Where the hold of an order begins in `mine`, its item number, its state and its slots; nil if there is none.
local function holdIn(mine, orderId)
  local at = string.find(';' .. mine, ';' .. orderId .. ',', 1, true)
  if not at then return nil end
  return at, string.match(mine, '^,(%d+),([qs]),([%d.]+)', at + #orderId)
end

-- The seats of a hold that `holdIn` has found, with dots; the rev of its last move, or ''; and where it ends in `mine`. Of a
-- counted item the seats are nil.
local function seatsOfHold(mine, at, orderId, number, slots)
  local last = at + #orderId + #number + #slots + 3
  local seats, rev = string.match(mine, '^,([%d.]+)@?(%d*)', last + 1)
  if not seats then return nil, '', last end
  return seats, rev, last + 1 + #seats + (rev == '' and 0 or 1 + #rev)
end

-- One slot is one unit.
local function unitsOf(slots)
  local _, dots = string.gsub(slots, '%.', '')
  return dots + 1
end
