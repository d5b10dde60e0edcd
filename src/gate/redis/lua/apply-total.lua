--[[
  The item's total at a rev of the ledger; an older one changes nothing.

  KEYS[1..2]  gate, items
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..4]  item id, total, rev

  Returns text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
-- @include _epoch
-- @include _item

local number = numberOf(KEYS[2], ARGV[2])
if not number then return 'none' end
if tonumber(ARGV[4]) <= tonumber(redis.call('HGET', KEYS[2], 'r:' .. number)) then return 'old' end
redis.call('HSET', KEYS[2], 't:' .. number, ARGV[3], 'r:' .. number, ARGV[4])
return 'applied'
