--[[
  Reads what Redis knows of some subjects, and of a user's likes of them. Writes nothing.

  KEYS        for each shard: head; subjects, both generations of pairs of the epoch that the caller believes in force
  ARGV[1]     m: how many shards
  then        m times: that epoch, and how many subjects of this shard are asked for
  then        for each of them: subject; `<subject>\n<user>`, or nothing: nobody asks

  Returns lines, one for each subject: `<count> <unsettled events> <at> <1: the user likes it, 0: not, -: not known>`; nothing: not in
  Redis; `?`: there is no shard; `!`: it is that of another server; `!<epoch>`: another epoch is in force. A line that begins with `~` is
  of a shard that is shut: what it has decided is there, until it is opened with another epoch.
]]
-- @include _server
-- @include _subject
-- @include _generations

local call = redis.call
local shards = tonumber(ARGV[1])
local at, lines = 1 + 2 * shards, {}
for i = 1, shards do
  local epoch, count = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local key = 4 * i - 3
  local head = call('HMGET', KEYS[key], 'epoch', 'server', 'replid', 'shut', 'gen')
  local odd
  if not head[1] then odd = '?'
  elseif not head[2] or not isServer(head[2], head[3] or '') then odd = '!'
  elseif head[1] ~= epoch then odd = '!' .. head[1] end
  local begin = head[4] and '~' or ''
  local names, fields, places = {}, {}, {}
  for j = 1, count do
    names[j] = ARGV[at + 2 * j - 1]
    local field = ARGV[at + 2 * j]
    if field ~= '' then
      fields[#fields + 1] = field
      places[j] = #fields
    end
  end
  local subjects, inYoung, inOld = {}, {}, {}
  if not odd then
    subjects = call('HMGET', KEYS[key + 1], unpack(names))
    if #fields > 0 then
      local young, old = generations(tonumber(head[5]), KEYS[key + 2], KEYS[key + 3])
      inYoung, inOld = call('HMGET', young, unpack(fields)), call('HMGET', old, unpack(fields))
    end
  end
  for j = 1, count do
    local line = odd or begin
    if subjects[j] then
      local of, place = readSubject(names[j], subjects[j]), places[j]
      local like = place and (inYoung[place] or inOld[place])
      line = begin .. string.format('%d %d %d ', shownCount(of), of.unsettled, of.at) .. (like and string.sub(like, 1, 1) or '-')
    end
    lines[#lines + 1] = line
  end
  at = at + 2 * count
end
return table.concat(lines, '\n')
