--[[
  Deletes old records of settled pairs, some at a time: for a shard in which nothing is being settled.

  KEYS[1..4]  head; subjects, pairs, settled of the epoch that the caller believes in force
  ARGV[1]     that epoch
  ARGV[2]     for how many ms settled pairs are kept at least
  ARGV[3]     how many to look at

  Returns how many lines were done, as text; or a number: the epoch in force, which is not the caller's, 0 if there is none.
]]
-- @include _subject
-- @include _subjects-of-call
-- @include _prune

local inForce = redis.call('HGET', KEYS[1], 'epoch')
if inForce ~= ARGV[1] then return tonumber(inForce or 0) end
local done = prune(KEYS[4], KEYS[3], now(), tonumber(ARGV[2]), tonumber(ARGV[3]), subjectOf)
saveSubjects()
return tostring(done)
