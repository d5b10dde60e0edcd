--[[
  Deletes the old generation of records if all in it was settled long enough ago, and begins a new one. A record of an event that Redis
  was not told of is moved to the young generation first. If there may be any, the old one is searched, some records at a time.

  KEYS[1..4]  head; both generations of pairs, told ahead of the epoch that the caller believes in force
  ARGV[1]     that epoch
  ARGV[2]     for how many ms settled pairs are kept at least
  ARGV[3]     about how many records to look at

  Returns 'kept': it is not time, or there are no records; 'more': some were looked at; 'done'; or a number: the epoch in force, which is
  not the caller's, 0 if there is none.
]]
-- @include _subject
-- @include _generations
-- @include _told

local call = redis.call
local head = call('HMGET', KEYS[1], 'epoch', 'server', 'n', 'told', 'gen', 'edge', 'edgeAt', 'cursor')
if not head[2] then return 0 end
if head[1] ~= ARGV[1] then return tonumber(head[1]) end
local told, gen, edge, edgeAt = tonumber(head[4]), tonumber(head[5]), tonumber(head[6]), tonumber(head[7])
local young, old = generations(gen, KEYS[2], KEYS[3])
local nowMs = now()
if nowMs - edgeAt < tonumber(ARGV[2]) or not (hasRecords(young) or hasRecords(old)) then return 'kept' end

if told < edge then
  local scanned = call('HSCAN', old, head[8], 'COUNT', ARGV[3])
  for i = 1, #scanned[2], 2 do
    local field, record = scanned[2][i], scanned[2][i + 1]
    local number = tonumber(string.sub(record, 2))
    if number and number > told and untoldIn(toldRanges(KEYS[4], told, number, number), number, number) > 0 then
      -- Unless it was decided again.
      call('HSETNX', young, field, record)
    end
  end
  if scanned[1] ~= '0' then
    call('HSET', KEYS[1], 'cursor', scanned[1])
    return 'more'
  end
end
turnOver(KEYS[1], gen, old, tonumber(head[3]), nowMs)
return 'done'
