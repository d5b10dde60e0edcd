--[[
  Forgets keys that are still bound as they were read, unless their order is queued: the ledger has not stored it, and
  would not know the key.

  KEYS[1..3]  gate, holds, keys
  ARGV[1]     the epoch that the caller believes in force
  then        name and binding of each key, as they were read

  Returns how many, as text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
local call = redis.call

-- @include _epoch
-- @include _holds

local names, buyers = {}, {}
for i = 2, #ARGV, 2 do
  names[#names + 1] = ARGV[i]
  buyers[#buyers + 1] = string.match(ARGV[i], '^([^\n]*)')
end
local bound = call('HMGET', KEYS[3], unpack(names))
local holds = call('HMGET', KEYS[2], unpack(buyers))
local over = {}
for i, name in ipairs(names) do
  if bound[i] == ARGV[2 * i + 1] then
    local at, _, state
    if holds[i] then at, _, state = holdIn(wholeHolds(holds[i]), string.match(bound[i], '^%S+')) end
    if not (at and state == 'q') then over[#over + 1] = name end
  end
end
if #over > 0 then call('HDEL', KEYS[3], unpack(over)) end
return tostring(#over)
