--[[
  Adds some users to a filter that is being filled; with the last of them it is complete.

  KEYS[1..2]  head; subjects of the epoch that the caller believes in force
  ARGV[1]     that epoch
  ARGV[2]     the prefix of the names of filters
  ARGV[3]     how many users may be in filters
  ARGV[4..5]  subject, token of fill-begin.lua
  ARGV[6]     1 if these are the last
  ARGV[7]     the users' marks, 6 characters each

  Returns 'filling' or 'complete'; 'lost': the subject has left Redis since, its filter was given up, or somebody else has begun to fill
  it; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
-- @include _subject
-- @include _filter

local count = #(ARGV[7] or '') / MARK
local marks = readMarks(ARGV[7], count)
if #ARGV ~= 7 or not marks then error('fill: arguments are missing') end
local head = redis.call('HMGET', KEYS[1], 'epoch', 'server', 'users')
if not head[2] then return 0 end
if head[1] ~= ARGV[1] then return tonumber(head[1]) end
local text = redis.call('HGET', KEYS[2], ARGV[4])
local of = text and readSubject(ARGV[4], text)
if not of or of.state ~= 'f' .. ARGV[5] then return 'lost' end
local room, places = { users = tonumber(head[3]), max = tonumber(ARGV[3]) }, {}
for i = 1, count do places[i] = i end
readBuckets(ARGV[2], of, marks, places)
for i = 1, count do addToFilter(ARGV[2], of, marks, i, room) end
saveFilter(ARGV[2], of)
if of.state ~= 'x' and ARGV[6] == '1' then of.state = 'c' end
redis.call('HSET', KEYS[2], ARGV[4], writtenSubject(of))
redis.call('HSET', KEYS[1], 'users', room.users)
if of.state == 'x' then return 'lost' end
return of.state == 'c' and 'complete' or 'filling'
