--[[
  Included by the commands that read, write or delete records of pairs. Not a command of its own.

  Records are in two hashes, the young generation and the old one. A record is written into the young one. When everything in the old one
  was settled long enough ago, it is deleted as a whole, and the young one becomes the old one. So nobody has to touch a record to
  settle or to delete it. Of two records of a pair the young one counts.

  In the head:
    gen     the number of the young generation: even in the first hash, odd in the second
    edge    the number of the last event when it began: no record in the old one is of a later event
    edgeAt  when Redis was last told of an event up to that one
    cursor  how far the old one was searched for records to keep
]]

-- A small hash is a list that Redis searches from its beginning for every field. One long value makes it a table.
local NOBODY, LONG = '', string.rep(' ', 65)

local function beginGeneration(key) redis.call('HSET', key, NOBODY, LONG) end

local function hasRecords(key) return redis.call('HLEN', key) > 1 end

local function generations(gen, first, second)
  if gen % 2 == 0 then return first, second end
  return second, first
end

-- The young generation grows old, and an empty one begins.
local function turnOver(head, gen, old, n, nowMs)
  redis.call('UNLINK', old)
  beginGeneration(old)
  redis.call('HSET', head, 'gen', gen + 1, 'edge', n, 'edgeAt', nowMs, 'cursor', 0)
end
