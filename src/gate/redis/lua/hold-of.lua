--[[
  The hold of an order as it stands.

  KEYS[1..3]  gate, items, holds
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..3]  order id, buyer

  Returns {q or s, slots with dots, epoch, `<item id> <amount> <currency> <code>`, seats with dots or nothing}, or nil: there is no such
  hold; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]

-- @include _epoch
-- @include _holds

local mine = redis.call('HGET', KEYS[3], ARGV[3])
if not mine then return nil end
mine = wholeHolds(mine)
local at, number, state, slots = holdIn(mine, ARGV[2])
if not at then return nil end
local seats = seatsOfHold(mine, at, ARGV[2], number, slots)
return { state, slots, ARGV[1], redis.call('HGET', KEYS[2], 's:' .. number), seats or '' }
