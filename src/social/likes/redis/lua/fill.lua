--[[
  Adds some users to a filter that is being filled; with the last of them it is complete.

  KEYS[1..2]  head; subjects of the epoch that the caller believes in force
  ARGV[1]     that epoch
  ARGV[2]     the prefix of the names of filters
  ARGV[3]     how many bytes filters may take
  ARGV[4..5]  subject, token of fill-begin.lua
  ARGV[6]     1 if these are the last
  ARGV[7]     the users' hashes, 16 characters each

  Returns 'filling' or 'complete'; 'lost': the subject has left Redis since, its filter was given up, or somebody else has begun to fill
  it; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
-- @include _subject
-- @include _filter

local count = #ARGV[7] / 16
local hashes = readHashes(ARGV[7], count)
if #ARGV ~= 7 or not hashes then error('fill: arguments are missing') end
local head = redis.call('HMGET', KEYS[1], 'epoch', 'bytes')
if head[1] ~= ARGV[1] then return tonumber(head[1] or 0) end
local text = redis.call('HGET', KEYS[2], ARGV[4])
local of = text and readSubject(ARGV[4], text)
if not of or of.state ~= 'f' .. ARGV[5] then return 'lost' end
local room = { bytes = tonumber(head[2]), max = tonumber(ARGV[3]) }
for i = 1, count do
  if not isInFilter(ARGV[2], of, hashes, i) then addToFilter(ARGV[2], of, hashes, i, room) end
end
if of.state ~= 'x' and ARGV[6] == '1' then of.state = 'c' end
redis.call('HSET', KEYS[2], ARGV[4], writtenSubject(of))
redis.call('HSET', KEYS[1], 'bytes', room.bytes)
if of.state == 'x' then return 'lost' end
return of.state == 'c' and 'complete' or 'filling'
