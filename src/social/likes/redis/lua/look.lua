--[[
  Reads what Redis knows of some subjects, and of a user's likes of them. Writes nothing.

  KEYS        for each shard: head; subjects, pairs of the epoch that the caller believes in force
  ARGV[1]     m: how many shards
  then        m times: that epoch, and how many subjects of this shard are asked for
  then        for each of them: subject; `<subject>\n<user>`, or nothing: nobody asks

  Returns lines, one for each subject: `<count> <unsettled pairs> <at> <1: the user likes it, 0: not, -: not known>`; nothing: not in
  Redis; `!`: the shard is stale; `!<epoch>`: another epoch is in force.
]]
-- @include _server

local call = redis.call
local shards = tonumber(ARGV[1])
local at, lines = 1 + 2 * shards, {}
for i = 1, shards do
  local epoch, count = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local head = call('HMGET', KEYS[3 * i - 2], 'epoch', 'run', 'replid', 'shut')
  local odd
  if not head[1] or not head[2] or head[4] or not isServer(head[2], head[3] or '') then odd = '!'
  elseif head[1] ~= epoch then odd = '!' .. head[1] end
  local names, fields, places = {}, {}, {}
  for j = 1, count do
    names[j] = ARGV[at + 2 * j - 1]
    local field = ARGV[at + 2 * j]
    if field ~= '' then
      fields[#fields + 1] = field
      places[j] = #fields
    end
  end
  local subjects = not odd and call('HMGET', KEYS[3 * i - 1], unpack(names)) or {}
  local likes = not odd and #fields > 0 and call('HMGET', KEYS[3 * i], unpack(fields)) or {}
  for j = 1, count do
    local line = odd or ''
    if subjects[j] then
      local base, committedAt, delta, unsettled = string.match(subjects[j], '^(%-?%d+) %d+ (%d+) (%-?%d+) (%d+) ')
      local like = places[j] and likes[places[j]]
      line = base + delta .. ' ' .. unsettled .. ' ' .. committedAt .. ' ' .. (like and string.sub(like, 1, 1) or '-')
    end
    lines[#lines + 1] = line
  end
  at = at + 2 * count
end
return table.concat(lines, '\n')
