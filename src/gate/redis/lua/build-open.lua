--[[
  Opens a gate that was built: from now on its epoch is in force. Deletes the keys of all lower epochs except the streams, which
  are drained first.

  KEYS[1..2]  gate, epochs
  KEYS[3..7]  items, holds, keys, seats, stream of the new epoch
  then        items, holds, keys, house, seats, changes, stream of each lower epoch that is registered
  ARGV[1]     the new epoch
  ARGV[2]     the builder
  ARGV[3]     the server's run id and replication id when building began, a blank between
  ARGV[4..5]  how many fields were written to holds and to keys
  ARGV[6]     version
  ARGV[7..12] opens, closes, paused, closed, perBuyer, payWithin
  ARGV[13]    1 if it is to be shut: in place, but not open yet
  ARGV[14]    how many bytes were written to seats
  then        the lower epochs

  Returns {'opened'}; {'lost'}: part of what was built is missing, or belongs to another build; {'epochs', …}: the lower epochs
  that are registered, which are not those that the caller named; or a number: the epoch in force, which is not below the new one.
]]
-- @include _server

local KEYS_AN_EPOCH, LOWER_AT = 7, 15
local call = redis.call
local epoch = tonumber(ARGV[1])
local values = call('HMGET', KEYS[1], 'epoch', 'version', 'opens', 'closes', 'paused', 'closed', 'perBuyer', 'payWithin')
local inForce = tonumber(values[1] or 0)
if inForce >= epoch then return inForce end

local run, replid = string.match(ARGV[3], '^(%x+) (%x*)$')
if not isServer(run, replid)
  or call('SISMEMBER', KEYS[2], ARGV[1]) == 0
  or call('HGET', KEYS[3], 'build') ~= ARGV[2]
  or call('HLEN', KEYS[4]) ~= tonumber(ARGV[4])
  or call('HLEN', KEYS[5]) ~= tonumber(ARGV[5])
  or call('STRLEN', KEYS[6]) ~= tonumber(ARGV[14])
then
  return { 'lost' }
end

local expected, lower = {}, {}
for i = LOWER_AT, #ARGV do expected[ARGV[i]] = true end
local known = true
for _, other in ipairs(call('SMEMBERS', KEYS[2])) do
  if tonumber(other) < epoch then
    lower[#lower + 1] = other
    known = known and expected[other]
  end
end
if not known then return { 'epochs', unpack(lower) } end

-- Values and totals that arrived while this gate was being built went to the gate in force. They are newer: keep them.
if not values[2] or tonumber(values[2]) <= tonumber(ARGV[6]) then
  for i = 6, 12 do values[i - 4] = ARGV[i] end
end
for i = LOWER_AT, #ARGV do
  if tonumber(ARGV[i]) == inForce then
    local old = KEYS[8 + KEYS_AN_EPOCH * (i - LOWER_AT)]
    local totals = {}
    for number = 1, tonumber(call('HGET', old, 'n') or 0) do
      local of = call('HMGET', old, 's:' .. number, 't:' .. number, 'r:' .. number)
      if of[1] then totals[string.match(of[1], '^%S+')] = of end
    end
    for number = 1, tonumber(call('HGET', KEYS[3], 'n')) do
      local of = call('HMGET', KEYS[3], 's:' .. number, 'r:' .. number)
      local newer = totals[string.match(of[1], '^%S+')]
      if newer and tonumber(newer[3]) > tonumber(of[2]) then
        call('HSET', KEYS[3], 't:' .. number, newer[2], 'r:' .. number, newer[3])
      end
    end
  end
end

local made = redis.pcall('XGROUP', 'CREATE', KEYS[7], 'ledger', '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
call('HDEL', KEYS[3], 'build')
local writer = 1
while call('HDEL', KEYS[3], 'chunk:' .. writer) == 1 do writer = writer + 1 end
call('DEL', KEYS[1])
call('HSET', KEYS[1], 'epoch', ARGV[1], 'run', run, 'replid', replid, 'version', values[2], 'opens', values[3], 'closes', values[4],
  'paused', values[5], 'closed', values[6], 'perBuyer', values[7], 'payWithin', values[8])
if ARGV[13] == '1' then call('HSET', KEYS[1], 'shut', 1) end
for i = LOWER_AT, #ARGV do
  local at = 8 + KEYS_AN_EPOCH * (i - LOWER_AT)
  call('UNLINK', unpack(KEYS, at, at + 5))
  if call('EXISTS', KEYS[at + 6]) == 0 then call('SREM', KEYS[2], ARGV[i]) end
end
return { 'opened' }
