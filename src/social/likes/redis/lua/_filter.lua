--[[
  Included by the commands that read or change filters. Not a command of its own.

  The filter of a subject says of a user `never liked` or `perhaps`. It consists of buckets; a bucket is the marks of its users, 6
  characters each, one after the other (src/social/likes/redis/user-mark.ts). It grows by linear hashing: with more than BUCKET_USERS users
  a bucket on the average, one bucket is split in two by the next bit of its users' marks. So it needs 8 to 10 bytes a user at any size, no
  call does more than a few splits, and a whole batch is one HMGET and one HSET. The first bucket may hold FIRST_USERS: until then it
  stands in the subject's value, where it costs no command at all. Several buckets are a hash.

  It forgets nobody: a mark is in the bucket that its own bits name. It takes a stranger for a user if the marks are the same: with ten
  million users once in 7 000.
]]
local MARK, BUCKET_USERS, FIRST_USERS = 6, 32, 64
-- What `0` for each of the first four characters amounts to: they give the bucket, for up to 2^24 of them.
local ZERO = 48 * (1 + 64 + 64 ^ 2 + 64 ^ 3)
local byte, char, find, sub, floor = string.byte, string.char, string.find, string.sub, math.floor

local function filterName(begin, of) return begin .. of.name end

-- The marks of this call; nil if they are not whole: then a command must stop before its first write.
local function readMarks(text, count)
  if #text ~= MARK * count or find(text, '[^0-o]') then return nil end
  return text
end

-- A bucket's name in the hash: the bytes of its number. Digits would take longer to write than the rest of the command.
local function bucketName(bucket)
  local low = bucket % 256
  if bucket < 65536 then return char(low, (bucket - low) / 256) end
  return char(low, floor(bucket / 256) % 256, floor(bucket / 65536))
end

local function openBuckets(of)
  if of.cache then return end
  of.cache, of.touched, of.places, of.size = {}, {}, {}, 1
  while 2 * of.size <= of.buckets do of.size = 2 * of.size end
end

-- Finds the buckets of some marks, and reads them in one call. `places`: which of the marks.
local function readBuckets(begin, of, marks, places)
  if of.buckets == 1 then return end
  openBuckets(of)
  local cache, bucketOf, size, buckets, names = of.cache, of.places, of.size, of.buckets, {}
  for _, i in ipairs(places) do
    local a, b, c, d = byte(marks, MARK * i - MARK + 1, MARK * i - MARK + 4)
    local bucket = (a + b * 64 + c * 4096 + d * 262144 - ZERO) % (2 * size)
    -- The buckets below `buckets - size` are split already, and named by one bit more.
    local name = bucketName(bucket < buckets and bucket or bucket - size)
    bucketOf[i] = name
    if not cache[name] then
      cache[name] = ''
      names[#names + 1] = name
    end
  end
  if #names == 0 then return end
  for i, text in ipairs(redis.call('HMGET', filterName(begin, of), unpack(names))) do cache[names[i]] = text or '' end
end

local function hasMark(text, mark)
  local at = find(text, mark, 1, true)
  while at and at % MARK ~= 1 do at = find(text, mark, at + 1, true) end
  return at ~= nil
end

-- Whether the user with the i-th of these marks may be in it. Its bucket was read.
local function isInFilter(of, marks, i)
  return hasMark(of.buckets == 1 and of.first or of.cache[of.places[i]], sub(marks, MARK * i - MARK + 1, MARK * i))
end

local function splitBucket(begin, of)
  openBuckets(of)
  local from, to = bucketName(of.buckets - of.size), bucketName(of.buckets)
  local text = of.first
  if of.buckets > 1 then text = of.cache[from] or redis.call('HGET', filterName(begin, of), from) or '' end
  -- The bit that tells the two apart: 6 of them are in a character.
  local place, radix = 1, of.size
  while radix >= 64 do place, radix = place + 1, radix / 64 end
  local stay, go, s, g = {}, {}, 0, 0
  for at = 1, #text, MARK do
    if (byte(text, at + place - 1) - 48) % (2 * radix) >= radix then
      g = g + 1
      go[g] = sub(text, at, at + MARK - 1)
    else
      s = s + 1
      stay[s] = sub(text, at, at + MARK - 1)
    end
  end
  of.cache[from], of.cache[to] = table.concat(stay), table.concat(go)
  of.touched[from], of.touched[to] = true, true
  of.first, of.buckets = '', of.buckets + 1
  if of.buckets == 2 * of.size then of.size = of.buckets end
end

-- Deletes a filter; Redis frees a large one in the background. `room`: { users = in all filters of the shard, max }.
local function dropFilter(begin, of, room)
  if of.buckets > 1 then redis.call('UNLINK', filterName(begin, of)) end
  room.users = room.users - of.filled
  of.filled, of.buckets, of.first, of.cache, of.touched = 0, 1, '', nil, nil
end

-- Adds the user with the i-th of these marks, whose bucket was read; `isNew`: it is known that the user is not in it. Without room the
-- filter is given up: from then on every pair of the subject is looked up in the ledger, until the subject leaves Redis and comes back.
local function addToFilter(begin, of, marks, i, room, isNew)
  if of.state == 'x' then return end
  local mark = sub(marks, MARK * i - MARK + 1, MARK * i)
  local name = of.buckets > 1 and of.places[i]
  local text = name and of.cache[name] or of.first
  if not isNew and hasMark(text, mark) then return end
  if room.users >= room.max then
    dropFilter(begin, of, room)
    of.state = 'x'
    return
  end
  if name then of.cache[name], of.touched[name] = text .. mark, true
  else of.first = text .. mark end
  of.filled, room.users = of.filled + 1, room.users + 1
end

-- Splits buckets after users were added, and writes those that have changed. The subject must be written afterwards.
local function saveFilter(begin, of)
  while of.filled > math.max(BUCKET_USERS * of.buckets, FIRST_USERS) do splitBucket(begin, of) end
  if not of.touched then return end
  local fields, f = {}, 0
  for name in pairs(of.touched) do
    fields[f + 1], fields[f + 2] = name, of.cache[name]
    f = f + 2
  end
  if f > 0 then redis.call('HSET', filterName(begin, of), unpack(fields)) end
  of.cache, of.touched = nil, nil
end
