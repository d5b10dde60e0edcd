--[[
  The states of all seats, or what has changed since a revision. Also of a gate that is shut.

  KEYS[1..4]  gate, items, seats, changes
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2..3]  epoch and number of the revision that the caller has, or nothing

  Returns {the epoch; the number of the last change; `changes`; each as `<item id> <state> <seats with dots>`}; or {both; `all`; for each
  seated item its id and its letters}; nil: the sale has no seats; or a number: the epoch in force, which is not the
  caller's, 0 if there is none.
]]
-- @include _epoch

local call = redis.call
local known = call('HMGET', KEYS[2], 'n', 'N')
if not known[2] or call('EXISTS', KEYS[3]) == 0 then return nil end
local n = tonumber(known[2])
if ARGV[2] == ARGV[1] then
  local count = n - tonumber(ARGV[3])
  if count == 0 then return { ARGV[1], known[2], 'changes' } end
  if count > 0 and count <= call('LLEN', KEYS[4]) then
    return { ARGV[1], known[2], 'changes', unpack(call('LRANGE', KEYS[4], -count, -1)) }
  end
end
local reply, fields, items = { ARGV[1], known[2], 'all' }, {}, tonumber(known[1])
for number = 1, items do fields[2 * number - 1], fields[2 * number] = 's:' .. number, 'g:' .. number end
local of = call('HMGET', KEYS[2], unpack(fields))
for number = 1, items do
  local statesAt, size = string.match(of[2 * number] or '', '^(%d+) (%d+) ')
  if statesAt then
    local r = #reply
    reply[r + 1] = string.match(of[2 * number - 1], '^%S+')
    reply[r + 2] = call('GETRANGE', KEYS[3], statesAt, statesAt + size - 1)
  end
end
return reply
