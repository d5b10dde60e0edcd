--[[
  Included by the commands that read or change filters. Not a command of its own.

  The filter of a subject says of a user `never liked` or `perhaps`. It is a hash of buckets; a bucket is the marks of its users, 6
  characters each, one after the other (src/social/likes/redis/user-mark.ts). It grows by linear hashing: with more than BUCKET_USERS users
  a bucket on the average, one bucket is split in two by the next bit of its users' marks. So it needs 8 to 10 bytes a user at any size, no
  call does more than a few splits, and a whole batch is one HMGET and one HSET.

  It forgets nobody: a mark is in the bucket that its own bits name. It takes a stranger for a user if the marks are the same: with ten
  million users once in 7 000.
]]
local MARK, BUCKET_USERS = 6, 32
-- What `0` for each of the first four characters amounts to: they give the bucket, for up to 2^24 of them.
local ZERO = 48 * (1 + 64 + 64 ^ 2 + 64 ^ 3)

local function filterName(begin, of) return begin .. of.name end

-- The marks of this call; nil if they are not whole: then a command must stop before its first write.
local function readMarks(text, count)
  if #text ~= MARK * count or string.find(text, '[^0-o]') then return nil end
  return text
end

-- The bucket of a mark. The buckets below `buckets - size` are split already, and named by one bit more.
local function bucketOf(of, text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  local size = of.size
  local bucket = (a + b * 64 + c * 4096 + d * 262144 - ZERO) % (2 * size)
  return bucket < of.buckets and bucket or bucket - size
end

local function openFilter(of)
  if of.cache then return end
  of.cache, of.touched, of.size = {}, {}, 1
  while 2 * of.size <= of.buckets do of.size = 2 * of.size end
end

-- Reads the buckets of some marks in one call. `places`: which of the marks.
local function readBuckets(begin, of, marks, places)
  openFilter(of)
  if of.filled == 0 then return end
  local wanted, names = {}, {}
  for _, i in ipairs(places) do
    local bucket = bucketOf(of, marks, MARK * i - MARK + 1)
    if not of.cache[bucket] and not wanted[bucket] then
      wanted[bucket] = true
      names[#names + 1] = bucket
    end
  end
  if #names == 0 then return end
  for i, text in ipairs(redis.call('HMGET', filterName(begin, of), unpack(names))) do of.cache[names[i]] = text or '' end
end

local function bucketText(begin, of, bucket)
  local text = of.cache[bucket]
  if not text then
    text = of.filled > 0 and redis.call('HGET', filterName(begin, of), bucket) or ''
    of.cache[bucket] = text
  end
  return text
end

local function hasMark(text, mark)
  local at = string.find(text, mark, 1, true)
  while at and at % MARK ~= 1 do at = string.find(text, mark, at + 1, true) end
  return at ~= nil
end

-- Whether the user with the i-th of these marks may be in it.
local function isInFilter(begin, of, marks, i)
  openFilter(of)
  local at = MARK * i - MARK + 1
  return hasMark(bucketText(begin, of, bucketOf(of, marks, at)), string.sub(marks, at, at + MARK - 1))
end

local function splitBucket(begin, of)
  local from, to = of.buckets - of.size, of.buckets
  local text = bucketText(begin, of, from)
  -- The bit that tells the two apart: 6 of them are in a character.
  local char, radix = 1, of.size
  while radix >= 64 do char, radix = char + 1, radix / 64 end
  local stay, go, s, g = {}, {}, 0, 0
  for at = 1, #text, MARK do
    local bits, mark = string.byte(text, at + char - 1) - 48, string.sub(text, at, at + MARK - 1)
    if bits % (2 * radix) >= radix then
      g = g + 1
      go[g] = mark
    else
      s = s + 1
      stay[s] = mark
    end
  end
  of.cache[from], of.cache[to] = table.concat(stay), table.concat(go)
  of.touched[from], of.touched[to] = true, true
  of.buckets = to + 1
  if of.buckets == 2 * of.size then of.size = of.buckets end
end

-- Deletes a filter; Redis frees a large one in the background. `room`: { users = in all filters of the shard, max }.
local function dropFilter(begin, of, room)
  redis.call('UNLINK', filterName(begin, of))
  room.users = room.users - of.filled
  of.filled, of.buckets, of.cache, of.touched = 0, 1, nil, nil
end

-- Adds the user with the i-th of these marks; `isNew`: it is known that the user is not in it. Without room the filter is given up: from
-- then on every pair of the subject is looked up in the ledger, until the subject leaves Redis and comes back.
local function addToFilter(begin, of, marks, i, room, isNew)
  if of.state == 'x' then return end
  openFilter(of)
  local at = MARK * i - MARK + 1
  local bucket, mark = bucketOf(of, marks, at), string.sub(marks, at, at + MARK - 1)
  local text = bucketText(begin, of, bucket)
  if not isNew and hasMark(text, mark) then return end
  if room.users >= room.max then
    dropFilter(begin, of, room)
    of.state = 'x'
    return
  end
  of.cache[bucket], of.touched[bucket] = text .. mark, true
  of.filled, room.users = of.filled + 1, room.users + 1
  if of.filled > BUCKET_USERS * of.buckets then splitBucket(begin, of) end
end

local function saveFilter(begin, of)
  local fields = {}
  for bucket in pairs(of.touched or {}) do
    fields[#fields + 1] = bucket
    fields[#fields + 1] = of.cache[bucket]
  end
  if #fields > 0 then redis.call('HSET', filterName(begin, of), unpack(fields)) end
  of.touched = {}
end
