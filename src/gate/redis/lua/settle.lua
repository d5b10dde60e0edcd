--[[
  The ledger has stored these orders as reserved: their units are no longer queued. Does nothing without a hold, or when repeated.

  KEYS[1..3]  gate, items, holds
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2]     n: how many orders
  then        n order ids, n buyers

  Returns how many were settled, as text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
local call = redis.call

-- @include _epoch
-- @include _holds

local n = tonumber(ARGV[2])
if #ARGV ~= 2 + 2 * n then error('settle: arguments are missing') end
local holds = call('HMGET', KEYS[3], unpack(ARGV, 3 + n, 2 + 2 * n))
local newHolds, holdArgs, units = {}, {}, {}
local h, settled = 0, 0
for i = 1, n do
  local orderId, buyer = ARGV[2 + i], ARGV[2 + n + i]
  local mine = newHolds[buyer] or holds[i]
  local now, number, count
  if mine == orderId then
    now, number, count = orderId .. ',1,s,1', '1', 1
  elseif mine then
    mine = wholeHolds(mine)
    local at, of, state, slots = holdIn(mine, orderId)
    if at and state == 'q' then
      local stateAt = at + #orderId + #of + 2
      now = string.sub(mine, 1, stateAt - 1) .. 's' .. string.sub(mine, stateAt + 1)
      number, count = of, unitsOf(slots)
    end
  end
  if now then
    newHolds[buyer] = now
    holdArgs[h + 1], holdArgs[h + 2] = buyer, now
    h = h + 2
    units[number] = (units[number] or 0) + count
    settled = settled + 1
  end
end
if settled > 0 then
  call('HSET', KEYS[3], unpack(holdArgs))
  call('HINCRBY', KEYS[2], 'Q', -settled)
  for number, count in pairs(units) do call('HINCRBY', KEYS[2], 'q:' .. number, -count) end
end
return tostring(settled)
