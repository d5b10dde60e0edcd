--[[
  Takes subjects out of Redis that nobody has liked for a while and that have no record of a pair: everything about them is in the
  ledger. Looks at some subjects at a time.

  KEYS[1..4]  head; subjects, both generations of pairs of the epoch that the caller believes in force
  ARGV[1]     that epoch
  ARGV[2]     the prefix of the names of filters
  ARGV[3..4]  where to go on (0: at the beginning), about how many subjects to look at
  ARGV[5]     for how many ms nobody has liked it

  Returns {where to go on, how many were taken out, how many are left}; or a number: the epoch in force, which is not the caller's, 0 if
  there is none.
]]
-- @include _subject
-- @include _generations
-- @include _filter

local head = redis.call('HMGET', KEYS[1], 'epoch', 'server', 'users', 'gen')
if not head[2] then return 0 end
if head[1] ~= ARGV[1] then return tonumber(head[1]) end
local nowMs, idleMs = now(), tonumber(ARGV[5])
local room = { users = tonumber(head[3]) }
local gen = tonumber(head[4])
local young, old = generations(gen, KEYS[3], KEYS[4])
-- Records of these generations may be there.
local least = (hasRecords(young) or hasRecords(old)) and gen - 1 or gen + 1
local scanned = redis.call('HSCAN', KEYS[2], ARGV[3], 'COUNT', ARGV[4])
local out = {}
for i = 1, #scanned[2], 2 do
  local of = readSubject(scanned[2][i], scanned[2][i + 1])
  if of.unsettled == 0 and of.gen < least and nowMs - of.used >= idleMs then
    dropFilter(ARGV[2], of, room)
    out[#out + 1] = of.name
  end
end
if #out > 0 then
  redis.call('HDEL', KEYS[2], unpack(out))
  redis.call('HSET', KEYS[1], 'users', room.users)
end
return { scanned[1], #out, redis.call('HLEN', KEYS[2]) }
