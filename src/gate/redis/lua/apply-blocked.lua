--[[
  All blocked seats of an item as of a rev of the ledger; an older rev changes none of them. The hold of the house that was taken for
  the change ends in the same step, whatever the rev.

  KEYS[1..5]  gate, items, house, seats, changes
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..3]  item id, rev
  ARGV[4]     ranges of seats, `<from>-<to>` with commas, ascending, or nothing
  ARGV[5]     hold id, or nothing

  Returns text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
local ITEMS, SEATS, CHANGES = KEYS[2], KEYS[4], KEYS[5]

-- @include _epoch
-- @include _item
-- @include _seats
-- @include _house

local number = numberOf(ITEMS, ARGV[2])
local hall = number and hallOf(number)
if not hall then return 'none' end
local k = ':' .. number
local known = redis.call('HMGET', ITEMS, 'w' .. k, 'B' .. k)
local newer, digest = tonumber(ARGV[3]) > tonumber(known[1]), redis.sha1hex(ARGV[4])
local more = 0
-- A rev rises with every order: mostly the same seats are blocked as before.
if newer and digest ~= known[2] then
  local now, before = {}, {}
  for from, to in string.gmatch(ARGV[4], '(%d+)-(%d+)') do
    if tonumber(to) >= hall.size then error('apply-blocked: no such seats') end
    for seat = tonumber(from), tonumber(to) do now[seat] = true end
  end
  local letters = redis.call('GETRANGE', SEATS, hall.statesAt, hall.statesAt + hall.size - 1)
  for at in string.gmatch(letters, '()[bxyzBXYZ]') do before[at - 1] = true end
  local changed = {}
  for seat in pairs(now) do
    if not before[seat] then changed[#changed + 1] = seat end
  end
  for seat in pairs(before) do
    if not now[seat] then changed[#changed + 1] = seat end
  end
  table.sort(changed)
  for _, seat in ipairs(changed) do
    setLetter(hall, seat, (now[seat] and BLOCK or UNBLOCK)[letterAt(hall, seat)])
    more = more + (now[seat] and 1 or -1)
  end
end
if ARGV[5] ~= '' then leaveHouse(KEYS[3], ARGV[5], number) end
noteChanges(hall)
if newer then redis.call('HSET', ITEMS, 'w' .. k, ARGV[3], 'B' .. k, digest) end
if more ~= 0 then redis.call('HINCRBY', ITEMS, 'b' .. k, more) end
writeSeats()
return 'applied'
