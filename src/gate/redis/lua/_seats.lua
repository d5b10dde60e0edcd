--[[
  Included by the commands that read or change seats. Before it: `ITEMS`, `SEATS` and `CHANGES`, the names of these keys.
  docs/internals/seats.md has the layout of SEATS. In short, for each item: a letter a seat; a byte a row for its longest free run,
  one for its free seats; and where the rows begin. Seats, rows and places in a row are counted from 0.

  f free, r reserved, s sold, h held by the house, b blocked; x, y, z: reserved, sold, held, and blocked as soon as it is left. A
  capital: the seat before it is no neighbour. So a run of free neighbours is `[fF]f*`.

  Nothing is written before `writeSeats`.
]]
local ROWS_A_BLOCK = 256
-- A byte of a row is so much more than the number of seats, of which no order has more than 100: all bytes are ASCII.
local NONE, MOST = 27, 100

local RESERVE = { f = 'r', b = 'x', F = 'R', B = 'X' }
local RESERVE_SOLD = { f = 's', b = 'y', F = 'S', B = 'Y' }
local HOLD = { f = 'h', b = 'z', F = 'H', B = 'Z' }
local LEAVE = {
  r = 'f', s = 'f', h = 'f', x = 'b', y = 'b', z = 'b',
  R = 'F', S = 'F', H = 'F', X = 'B', Y = 'B', Z = 'B',
}
local SELL = { r = 's', x = 'y', R = 'S', X = 'Y' }
local BLOCK = { f = 'b', r = 'x', s = 'y', h = 'z', F = 'B', R = 'X', S = 'Y', H = 'Z' }
local UNBLOCK = { b = 'f', x = 'r', y = 's', z = 'h', B = 'F', X = 'R', Y = 'S', Z = 'H' }
local SHOWN = { x = 'r', y = 's', z = 'b', X = 'r', Y = 's', Z = 'b' }
local function shown(letter)
  return SHOWN[letter] or string.lower(letter)
end

local halls, notes = {}, {}
-- How many claims there are on seats that somebody has already, and the changes to them, by field.
local furtherClaims, furtherChanges

-- The seats of the item with this number; nil: it is counted.
local function hallOf(number)
  number = tostring(number)
  local hall = halls[number]
  if hall == nil then
    local of = redis.call('HMGET', ITEMS, 'g:' .. number, 's:' .. number)
    hall = false
    if of[1] then
      local statesAt, size, rows, longestAt, freeAt, firstsAt = string.match(of[1], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
      hall = {
        number = number,
        id = string.match(of[2], '^%S+'),
        statesAt = tonumber(statesAt),
        size = tonumber(size),
        rows = tonumber(rows),
        at = { longest = tonumber(longestAt), free = tonumber(freeAt) },
        firstsAt = tonumber(firstsAt),
        -- Rows that were read, by number; blocks of bytes, by kind; what is to be written of both; and what was shown at seats
        -- that were changed.
        read = {}, blocks = {}, dirty = {}, unmeasured = { longest = {}, free = {} }, dirtyBlocks = { longest = {}, free = {} }, before = {},
      }
    end
    halls[number] = hall
  end
  return hall or nil
end

local function firstOf(hall, row)
  local firsts = hall.firsts
  if not firsts then
    firsts = redis.call('GETRANGE', SEATS, hall.firstsAt, hall.firstsAt + 3 * (hall.rows + 1) - 1)
    hall.firsts = firsts
  end
  local a, b, c = string.byte(firsts, 3 * row + 1, 3 * row + 3)
  return a * 16384 + b * 128 + c
end

local function rowNumbered(hall, number)
  local row = hall.read[number]
  if not row then
    local first = firstOf(hall, number)
    local n = firstOf(hall, number + 1) - first
    local at = hall.statesAt + first
    row = { number = number, first = first, n = n, text = redis.call('GETRANGE', SEATS, at, at + n - 1) }
    if #row.text ~= n then error('seats: a row is missing') end
    hall.read[number] = row
  end
  return row
end

local function rowOf(hall, seat)
  local last = hall.last
  if last and seat >= last.first and seat < last.first + last.n then return last end
  local low, high = 0, hall.rows - 1
  -- Rows are mostly of one length.
  local guess = math.floor(seat * hall.rows / hall.size)
  if firstOf(hall, guess) <= seat and firstOf(hall, guess + 1) > seat then low, high = guess, guess end
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if firstOf(hall, middle) <= seat then low = middle else high = middle - 1 end
  end
  local row = rowNumbered(hall, low)
  hall.last = row
  return row
end

local function letterAt(hall, seat)
  local row = rowOf(hall, seat)
  local at = seat - row.first + 1
  return string.sub(row.text, at, at)
end

-- The bytes of all rows, 256 in a block.
local function blocksOf(hall, kind)
  local blocks = hall.blocks[kind]
  if not blocks then
    local all = redis.call('GETRANGE', SEATS, hall.at[kind], hall.at[kind] + hall.rows - 1)
    if #all ~= hall.rows then error('seats: the bytes of the rows are missing') end
    blocks = {}
    for from = 1, #all, ROWS_A_BLOCK do blocks[#blocks + 1] = string.sub(all, from, from + ROWS_A_BLOCK - 1) end
    hall.blocks[kind] = blocks
  end
  return blocks
end

local function setByte(hall, kind, number, value)
  local blocks, block, at = blocksOf(hall, kind), math.floor(number / ROWS_A_BLOCK) + 1, number % ROWS_A_BLOCK + 1
  local now, before = string.char(NONE + math.min(value, MOST)), blocks[block]
  if string.sub(before, at, at) == now then return end
  blocks[block] = string.sub(before, 1, at - 1) .. now .. string.sub(before, at + 1)
  hall.dirtyBlocks[kind][block] = true
end

-- The free runs of a row: where each begins, and the place behind its end.
local function runsOf(row)
  if not row.starts then
    local starts, ends, count = {}, {}, 0
    for from, behind in string.gmatch(row.text, '()[fF]f*()') do
      count = count + 1
      starts[count], ends[count] = from - 1, behind - 1
    end
    row.starts, row.ends = starts, ends
  end
  return row.starts, row.ends
end

-- A row has changed: it is to be written, and its two bytes are to be brought up to date.
local function touch(hall, row)
  hall.dirty[row.number] = row
  hall.unmeasured.longest[row.number] = row
  hall.unmeasured.free[row.number] = row
end

-- The longest free run of a row, or its free seats.
local function measured(row, kind)
  local starts, ends = runsOf(row)
  local longest, free = 0, 0
  for i = 1, #starts do
    local length = ends[i] - starts[i]
    free = free + length
    if length > longest then longest = length end
  end
  return kind == 'longest' and longest or free
end

local function measureRows(hall, kind)
  for number, row in pairs(hall.unmeasured[kind]) do
    setByte(hall, kind, number, measured(row, kind))
    hall.unmeasured[kind][number] = nil
  end
end

-- Changes one seat of any hall; `noteChanges` then finds it.
local function setLetter(hall, seat, letter)
  local row = rowOf(hall, seat)
  local at = seat - row.first + 1
  if not hall.before[seat] then hall.before[seat] = shown(string.sub(row.text, at, at)) end
  row.text, row.starts = string.sub(row.text, 1, at - 1) .. letter .. string.sub(row.text, at + 1), nil
  touch(hall, row)
end

local function furtherAt(hall, seat, by)
  if not furtherClaims then
    furtherClaims = tonumber(redis.call('HGET', ITEMS, 'D') or 0)
    furtherChanges = {}
  end
  local field = 'd:' .. hall.number .. ':' .. seat
  local changed = furtherChanges[field] or 0
  if by > 0 then
    furtherChanges[field] = changed + by
    return true
  end
  -- Mostly there are none, and no seat has to be asked for.
  local stored = furtherClaims > 0 and tonumber(redis.call('HGET', ITEMS, field) or 0) or 0
  if stored + changed <= 0 then return false end
  furtherChanges[field] = changed + by
  return true
end

-- Somebody has these seats from now on. A seat that is taken twice is free when both have left it.
local function takeSeats(hall, seats, map)
  for _, seat in ipairs(seats) do
    local letter = map[letterAt(hall, seat)]
    if letter then setLetter(hall, seat, letter) else furtherAt(hall, seat, 1) end
  end
end

local function leaveSeats(hall, seats)
  for _, seat in ipairs(seats) do
    if not furtherAt(hall, seat, -1) then
      local letter = LEAVE[letterAt(hall, seat)]
      if letter then setLetter(hall, seat, letter) end
    end
  end
end

local function noteSeats(hall, state, dotted)
  notes[#notes + 1] = hall.id .. ' ' .. state .. ' ' .. dotted
end

-- Notes what is shown as changed since the last call, by state.
local function noteChanges(hall)
  local changed = {}
  for seat, before in pairs(hall.before) do
    local now = shown(letterAt(hall, seat))
    if now ~= before then
      changed[now] = changed[now] or {}
      table.insert(changed[now], seat)
    end
  end
  hall.before = {}
  for _, state in ipairs({ 'f', 'r', 's', 'b', 'h' }) do
    if changed[state] then
      table.sort(changed[state])
      noteSeats(hall, state, table.concat(changed[state], '.'))
    end
  end
end

-- `5.6.7` as numbers. Fails where these are no ascending seats of the hall.
local function seatsIn(hall, dotted)
  local seats, last = {}, -1
  for number in string.gmatch(dotted, '[^.]+') do
    local seat = tonumber(number)
    if not seat or seat <= last or seat >= hall.size or seat % 1 ~= 0 then error('seats: these are no seats: ' .. dotted) end
    seats[#seats + 1], last = seat, seat
  end
  return seats
end

local function writeSeats()
  for _, hall in pairs(halls) do
    if hall then
      measureRows(hall, 'longest')
      measureRows(hall, 'free')
      for _, row in pairs(hall.dirty) do redis.call('SETRANGE', SEATS, hall.statesAt + row.first, row.text) end
      for kind, dirty in pairs(hall.dirtyBlocks) do
        for block in pairs(dirty) do
          redis.call('SETRANGE', SEATS, hall.at[kind] + (block - 1) * ROWS_A_BLOCK, hall.blocks[kind][block])
        end
      end
    end
  end
  local sum = 0
  for field, by in pairs(furtherChanges or {}) do
    if by ~= 0 then
      sum = sum + by
      if redis.call('HINCRBY', ITEMS, field, by) == 0 then redis.call('HDEL', ITEMS, field) end
    end
  end
  if sum ~= 0 and redis.call('HINCRBY', ITEMS, 'D', sum) == 0 then redis.call('HDEL', ITEMS, 'D') end
  if #notes > 0 then
    redis.call('RPUSH', CHANGES, unpack(notes))
    redis.call('LTRIM', CHANGES, -4096, -1)
    redis.call('HINCRBY', ITEMS, 'N', #notes)
  end
end
