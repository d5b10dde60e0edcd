--[[
  Included by the commands that read or change filters. Not a command of its own.

  The filter of a subject says of a user `never liked` or `perhaps`. It has layers: a full one is followed by one four times as large,
  and users are added to the last. A layer consists of blocks of 8 words with 32 bits. A user has one block in each layer, and one bit in
  each of its words, so that one GETRANGE answers and one SETRANGE adds. At 16 users to a block a full layer takes about one user in
  1 000 for another.

  A layer is stored in strings of 2 046 blocks, made at their full length when they are first written: 65 472 bytes are just below a
  size that jemalloc gives out, and are cleared in some 20 µs. A layer of many megabytes in one string would stop Redis for milliseconds.

  A user's hash is 16 characters: 8 hexadecimal digits that choose the block, and for each word a character that chooses the bit
  (src/social/likes/redis/user-hash.ts).
]]
local SEGMENT_BLOCKS, BLOCK_BYTES, BLOCK_USERS = 2046, 32, 16
local FIRST_BLOCKS, GROWTH = 4, 4
local WORDS = '>I4I4I4I4I4I4I4I4'
local MASK = {}
for i = 0, 31 do MASK[48 + i] = 2 ^ i end

local band, bor = bit.band, bit.bor

local function layersOf(of)
  local sizes = of.sizes
  if not sizes then
    sizes = {}
    for blocks in string.gmatch(of.layers, '%d+') do sizes[#sizes + 1] = tonumber(blocks) end
    of.sizes = sizes
  end
  return sizes
end

-- The string with a user's block, and where the block begins in it.
local function placeOf(begin, of, layer, blocks, hash)
  local block = hash % blocks
  local segment = math.floor(block / SEGMENT_BLOCKS)
  return begin .. of.name .. ':' .. layer .. ':' .. segment, (block - segment * SEGMENT_BLOCKS) * BLOCK_BYTES, segment
end

local function hasBits(block, hashes, at)
  local a, b, c, d, e, f, g, h = struct.unpack(WORDS, block)
  local i, j, k, l, m, n, o, p = string.byte(hashes, at, at + 7)
  return band(a, MASK[i]) ~= 0 and band(b, MASK[j]) ~= 0 and band(c, MASK[k]) ~= 0 and band(d, MASK[l]) ~= 0
    and band(e, MASK[m]) ~= 0 and band(f, MASK[n]) ~= 0 and band(g, MASK[o]) ~= 0 and band(h, MASK[p]) ~= 0
end

-- Whether the user with the i-th of these hashes may be in it.
local function isInFilter(begin, of, hashes, i)
  local sizes, hash, bits = layersOf(of), hashes[i], hashes.text
  for layer = #sizes, 1, -1 do
    local name, offset = placeOf(begin, of, layer, sizes[layer], hash)
    local block = redis.call('GETRANGE', name, offset, offset + BLOCK_BYTES - 1)
    if block ~= '' and hasBits(block, bits, 16 * i - 7) then return true end
  end
  return false
end

-- Deletes the strings of a filter. Returns how many there were, at most, and frees their bytes.
local function dropFilter(begin, of, room)
  local names, count = {}, 0
  for layer, blocks in ipairs(layersOf(of)) do
    for segment = 0, math.ceil(blocks / SEGMENT_BLOCKS) - 1 do
      count = count + 1
      names[#names + 1] = begin .. of.name .. ':' .. layer .. ':' .. segment
      if #names == 1000 then
        redis.call('UNLINK', unpack(names))
        names = {}
      end
    end
    if room then room.bytes = room.bytes - blocks * BLOCK_BYTES end
  end
  if #names > 0 then redis.call('UNLINK', unpack(names)) end
  of.sizes, of.layers, of.filled = {}, '-', 0
  return count
end

-- Adds a layer. `room`: { bytes = of all filters of the shard, max }. Without room the filter is given up: from then on every pair of
-- the subject is looked up in the ledger, until the subject leaves Redis and comes back.
local function addLayer(begin, of, blocks, room)
  if room.bytes + blocks * BLOCK_BYTES > room.max then
    dropFilter(begin, of, room)
    of.state = 'x'
    return false
  end
  local sizes = layersOf(of)
  sizes[#sizes + 1] = blocks
  of.layers, of.filled = table.concat(sizes, ','), 0
  room.bytes = room.bytes + blocks * BLOCK_BYTES
  return true
end

-- Adds a user that is not in it.
local function addToFilter(begin, of, hashes, i, room)
  if of.state == 'x' then return end
  local sizes = layersOf(of)
  local last = sizes[#sizes]
  if not last or of.filled >= last * BLOCK_USERS then
    last = last and last * GROWTH or FIRST_BLOCKS
    if not addLayer(begin, of, last, room) then return end
  end
  local name, offset, segment = placeOf(begin, of, #sizes, last, hashes[i])
  local block = redis.call('GETRANGE', name, offset, offset + BLOCK_BYTES - 1)
  if block == '' then
    local blocks = math.min(SEGMENT_BLOCKS, last - segment * SEGMENT_BLOCKS)
    redis.call('SETRANGE', name, blocks * BLOCK_BYTES - 1, '\0')
    block = string.rep('\0', BLOCK_BYTES)
  end
  local a, b, c, d, e, f, g, h = struct.unpack(WORDS, block)
  local q, r, s, t, u, v, w, x = string.byte(hashes.text, 16 * i - 7, 16 * i)
  redis.call('SETRANGE', name, offset, struct.pack(WORDS, bor(a, MASK[q]), bor(b, MASK[r]), bor(c, MASK[s]), bor(d, MASK[t]),
    bor(e, MASK[u]), bor(f, MASK[v]), bor(g, MASK[w]), bor(h, MASK[x])))
  of.filled = of.filled + 1
end

-- Reads `count` hashes; nil if they are not whole: then a command must stop before its first write.
local function readHashes(text, count)
  if #text ~= 16 * count or string.find(text, '[^0-O]') then return nil end
  local hashes = { text = text }
  for i = 1, count do
    local hash = tonumber(string.sub(text, 16 * i - 15, 16 * i - 8), 16)
    if not hash then return nil end
    hashes[i] = hash
  end
  return hashes
end
