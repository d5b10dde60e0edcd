--[[
  Ends holds: their units, slots and seats are free again. Without a hold it does nothing, so units come back once only (P4).
  With a key, the order never came into being: the key is freed too, if it is bound to this order.

  KEYS[1..6]  gate, items, holds, keys, seats, changes
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2]     n: how many orders
  then        n order ids; n buyers; n times `<buyer>\n<key>` to be freed, or nothing

  Returns how many ended, as text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
local call = redis.call
local ITEMS, SEATS, CHANGES = KEYS[2], KEYS[5], KEYS[6]

-- @include _epoch
-- @include _holds
-- @include _seats

local n = tonumber(ARGV[2])
if #ARGV ~= 2 + 3 * n then error('end: arguments are missing') end
local holds = call('HMGET', KEYS[3], unpack(ARGV, 3 + n, 2 + 2 * n))
local newHolds, counts, freed = {}, {}, {}
local unsettled, ended = 0, 0
for i = 1, n do
  local orderId, buyer, name = ARGV[2 + i], ARGV[2 + n + i], ARGV[2 + 2 * n + i]
  local mine = newHolds[buyer] or holds[i]
  local at, number, state, slots
  if mine then
    mine = wholeHolds(mine)
    at, number, state, slots = holdIn(mine, orderId)
  end
  if at then
    local seats, _, last = seatsOfHold(mine, at, orderId, number, slots)
    if seats then
      local hall = hallOf(number)
      leaveSeats(hall, seatsIn(hall, seats))
      noteChanges(hall)
    end
    -- The holds before and after it, with one separator between them.
    local before, behind = string.sub(mine, 1, at - 1), string.sub(mine, last + 2)
    newHolds[buyer] = behind == '' and string.sub(before, 1, -2) or before .. behind
    local units = unitsOf(slots)
    counts['h:' .. number] = (counts['h:' .. number] or 0) + units
    if state == 'q' then
      counts['q:' .. number] = (counts['q:' .. number] or 0) + units
      unsettled = unsettled + 1
    end
    if name ~= '' then freed[#freed + 1] = { name, orderId .. ' ' } end
    ended = ended + 1
  end
end
if ended > 0 then
  for _, one in ipairs(freed) do
    local binding = call('HGET', KEYS[4], one[1])
    if binding and string.find(binding, one[2], 1, true) == 1 then call('HDEL', KEYS[4], one[1]) end
  end
  for buyer, left in pairs(newHolds) do
    if left == '' then call('HDEL', KEYS[3], buyer) else call('HSET', KEYS[3], buyer, left) end
  end
  for count, units in pairs(counts) do call('HINCRBY', KEYS[2], count, -units) end
  if unsettled > 0 then call('HINCRBY', KEYS[2], 'Q', -unsettled) end
  writeSeats()
end
return tostring(ended)
