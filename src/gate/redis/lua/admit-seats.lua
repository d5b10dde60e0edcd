--[[
  Decides a batch of orders for seats of one sale, as admit.lua does for counted items: one after the other, judged as in
  src/gate/memory.ts (item, seats, order id, key, window, limit, seats that are taken, stock, neighbours; then the bound on the
  pipe). Those that it admits go into the sale's stream as one entry, in the same step. Which seats are best: src/model/best-seats.ts.

  Nothing is written before everything is decided, and the stream comes first: if it is missing, nothing else is touched. Of the
  hall only rows are read that are named or chosen, and two bytes a row to find them.

  KEYS[1..7]  gate, items, holds, keys, stream, seats, changes (the last six of the epoch that the caller believes in force)
  ARGV[1]     that epoch
  ARGV[2]     how many orders may be unsettled
  ARGV[3]     the process that asks
  ARGV[4..5]  channel and message that tell of the new entry
  ARGV[6]     n: how many orders
  ARGV[7]     w: of how many items
  then        w item codes
              n times: order id; buyer; the number of its item (1 … w); `t<k>` for the best k together, `a<k>` for the best k, or
                seats with dots; fingerprint; `<buyer>\n<key>`, or nothing
              and last, if somebody placed some of them for their buyers: what stands in the entry's field `by`

  Returns a number if nothing was decided: 0, the gate is stale; else the epoch in force, which is not the caller's.
  Otherwise lines:
    <payWithin> <opens> <closes> <perBuyer>
    w times     <item number> <item id> <amount> <currency> <code>, or nothing: no such item
    n times     the outcome of src/model/outcome.ts, and behind it, after a blank each:
                  admitted: slots with dots, seats with dots    replayed: order id    limit_reached: the buyer's order ids
                  seat_taken: seats with dots
                or -1: the order id stands for another item
]]
-- @include _server

local KEYS, ARGV = KEYS, ARGV
local call, find, match, sub, concat = redis.call, string.find, string.match, string.sub, table.concat
local floor, abs, min, max = math.floor, math.abs, math.min, math.max
local ITEMS, SEATS, CHANGES = KEYS[2], KEYS[6], KEYS[7]

local gate = call('HMGET', KEYS[1], 'epoch', 'run', 'shut', 'opens', 'closes', 'paused', 'closed', 'perBuyer', 'payWithin',
  'replid')
local epoch, run = gate[1], gate[2]
if not epoch or not run or gate[3] then return 0 end
if not isServer(run, gate[10] or '') then return 0 end
if epoch ~= ARGV[1] then return tonumber(epoch) end

-- @include _holds
-- @include _seats

local pipeMax, n, w = tonumber(ARGV[2]), tonumber(ARGV[6]), tonumber(ARGV[7])
local ordersAt = 7 + w
local argsEnd = ordersAt + 6 * n
local placedBy = ARGV[argsEnd + 1]
if n < 1 or #ARGV ~= (placedBy and argsEnd + 1 or argsEnd) then error('admit-seats: arguments are missing') end

local fields = { 'n', 'Q' }
for i = 1, w do fields[i + 2] = 'C:' .. ARGV[7 + i] end
local numbers = call('HMGET', ITEMS, unpack(fields))
if not numbers[1] then return 0 end
-- A sale without seats has no such key either; then no item is found.
if call('EXISTS', SEATS) == 0 and call('HEXISTS', ITEMS, 'N') == 1 then return 0 end
local unsettled = tonumber(numbers[2])

local items, static = {}, {}
for i = 1, w do
  local number = numbers[i + 2]
  items[i], static[i] = false, ''
  if number then
    local k = ':' .. number
    local of = call('HMGET', ITEMS, 's' .. k, 't' .. k, 'b' .. k, 'h' .. k, 'q' .. k, 'o' .. k, 'x' .. k)
    local hall = hallOf(number)
    if not hall then error('admit-seats: a seated item has no seats') end
    hall.cursor, hall.most = { longest = {}, free = {} }, {}
    items[i] = {
      number = number,
      text = of[1],
      -- Off sale: nothing of it is free to anybody.
      free = of[7] and 0 or of[2] - of[3] - of[4] - of[6],
      offSale = of[7],
      held = tonumber(of[4]),
      queued = tonumber(of[5]),
      hall = hall,
      taken = 0,
    }
    static[i] = number .. ' ' .. of[1]
  end
end

local wants, buyers, names, keyed = {}, {}, {}, false
for i = 1, n do
  local at = ordersAt + 6 * (i - 1)
  local item, what = items[tonumber(ARGV[at + 3])], ARGV[at + 4]
  if item == nil then error('admit-seats: not a number of an item') end
  buyers[i], names[i] = ARGV[at + 2], ARGV[at + 6]
  keyed = keyed or names[i] ~= ''
  local kind, quantity = match(what, '^([ta])([1-9]%d*)$')
  local want = { item = item, orderId = ARGV[at + 1], fingerprint = ARGV[at + 5], kind = kind, quantity = tonumber(quantity) }
  if not kind then
    local seats, last = {}, -1
    for dotted in string.gmatch(what, '[^.]+') do
      local seat = tonumber(dotted)
      if not seat or seat <= last or seat % 1 ~= 0 then error('admit-seats: these are no seats') end
      -- A seat that the map does not have is as unknown as an item.
      if item and seat >= item.hall.size then want.item = false end
      seats[#seats + 1], last = seat, seat
    end
    if #seats == 0 then error('admit-seats: no seats are wanted') end
    want.seats, want.quantity = seats, #seats
  end
  wants[i] = want
end

local time = call('TIME')
local nowMs = time[1] * 1000 + floor(time[2] / 1000)
local closedBy
if gate[7] == '1' then closedBy = '21'
elseif nowMs < tonumber(gate[4]) then closedBy = '20'
elseif nowMs >= tonumber(gate[5]) then closedBy = '21'
elseif gate[6] == '1' then closedBy = '22' end
local perBuyer = tonumber(gate[8])

local holds = call('HMGET', KEYS[3], unpack(buyers))
local bound = keyed and call('HMGET', KEYS[4], unpack(names))
local boundAt = ' ' .. string.format('%.0f', nowMs) .. ' '

-- The lowest slots that a buyer has free, or nil and the buyer's order ids.
local firstSlots = {}
local function freeSlots(mine, quantity)
  if not mine then
    if quantity > perBuyer then return nil, '' end
    if not firstSlots[quantity] then
      local slots = {}
      for slot = 1, quantity do slots[slot] = slot end
      firstSlots[quantity] = concat(slots, '.')
    end
    return firstSlots[quantity]
  end
  local taken, units, orders = {}, 0, {}
  for orderId, slots in string.gmatch(mine, '([^,;]+),%d+,[qs],([%d.]+)') do
    orders[#orders + 1] = orderId
    for slot in string.gmatch(slots, '%d+') do
      taken[slot] = true
      units = units + 1
    end
  end
  if units + quantity > perBuyer then return nil, concat(orders, ' ') end
  local slots, slot = {}, 0
  while #slots < quantity do
    slot = slot + 1
    local name = tostring(slot)
    if not taken[name] then slots[#slots + 1] = name end
  end
  return concat(slots, '.')
end

-- A pattern for a byte of at least k. Two characters mean something at the beginning of a set.
local function atLeast(k)
  local lowest = string.char(NONE + k)
  if lowest == '%' then return '[%%&-\127]' end
  if lowest == '^' then return '[_-\127%^]' end
  return '[' .. lowest .. '-\127]'
end

-- The first row with a free run of k, or with k free seats. Seats are only taken here: no row comes to have more, so that the search
-- goes on where it ended before. The bytes of longest runs are not brought up to date for it: rows that have changed are measured
-- when they are met.
local function firstRow(hall, kind, k)
  if k > (hall.most[kind] or MOST) then return nil end
  if kind == 'free' then measureRows(hall, kind) end
  local blocks, pattern, stale = blocksOf(hall, kind), atLeast(k), hall.unmeasured[kind]
  local from = hall.cursor[kind][k] or 0
  while from < hall.rows do
    local first = from - from % ROWS_A_BLOCK
    local at = find(blocks[first / ROWS_A_BLOCK + 1], pattern, from - first + 1)
    if at then
      local number = first + at - 1
      if not stale[number] or measured(stale[number], kind) >= k then
        hall.cursor[kind][k] = number
        return number
      end
      from = number + 1
    else from = first + ROWS_A_BLOCK end
  end
  -- Nor is there one for more.
  hall.most[kind] = k - 1
  return nil
end

-- The first of the rows with the most free seats, none of which has k; and how many it has. No row comes to have as many as the
-- fullest, so that this search goes on, too.
local function fullestRow(hall, k)
  measureRows(hall, 'free')
  local blocks = blocksOf(hall, 'free')
  for free = min(hall.most.free, k - 1), 1, -1 do
    local wanted = string.char(NONE + free)
    for block = hall.mostOf == free and hall.mostFrom or 1, #blocks do
      local at = find(blocks[block], wanted, 1, true)
      if at then
        hall.mostOf, hall.mostFrom = free, block
        return (block - 1) * ROWS_A_BLOCK + at - 1, free
      end
    end
    hall.most.free = free - 1
  end
  error('admit-seats: fewer seats are free than counted')
end

-- The last of the runs that begin at this place or before it; 0: there is none.
local function runAt(starts, place)
  local low, high = 0, #starts
  while low < high do
    local middle = floor((low + high + 1) / 2)
    if starts[middle] <= place then low = middle else high = middle - 1 end
  end
  return low
end

-- Where the best window of k begins in a row that has one: src/gate/hall.ts says why these windows are enough. Runs are looked at
-- from the centre outwards, until none that follows can be nearer.
local function bestWindow(row, k)
  local starts, ends = runsOf(row)
  local length = row.n
  local centre = floor((length - k) / 2)
  local best, least
  -- An orphan weighs more than any distance, which is at most the length of the row.
  local function consider(start, orphans)
    local cost = orphans * (2 * length + 1) + abs(2 * start + k - length)
    if not best or cost < least or (cost == least and start < best) then best, least = start, cost end
  end
  local middle = runAt(starts, centre)
  local i, step = middle, -1
  while true do
    local first, behind = starts[i], ends[i]
    -- To the left, then to the right: past the last run, or where none can be nearer.
    if not first or (best and (step < 0 and length + k - 2 * behind or 2 * first + k - length) > least) then
      if step > 0 then return best end
      i, step = middle, 1
    else
      local last = behind - k
      if last >= first then
        local orphans = last - first == 1 and 1 or 0
        consider(first, orphans)
        if last > first then consider(last, orphans) end
        if last - first >= 4 then consider(min(max(centre, first + 2), last - 2), 0) end
      end
    end
    i = i + step
  end
end

-- The k free places of a row that are nearest to its centre; ascending.
local function central(row, k)
  local starts, ends = runsOf(row)
  local length = row.n
  -- Both sides begin at the centre; a side that is empty is at the end of the row.
  local left = floor((length - 1) / 2)
  local right = left + 1
  local l = runAt(starts, left)
  local r = l + 1
  if l > 0 then
    if ends[l] > right then r = l end
    left = min(left, ends[l] - 1)
  else left = -1 end
  right = starts[r] and max(right, starts[r]) or length
  local places = {}
  while #places < k do
    if right >= length or (left >= 0 and length - 1 - left <= right) then
      if left < 0 then error('admit-seats: a row has fewer free seats than counted') end
      places[#places + 1] = left
      left = left - 1
      if left < starts[l] then
        l = l - 1
        left = l > 0 and ends[l] - 1 or -1
      end
    else
      places[#places + 1] = right
      right = right + 1
      if right >= ends[r] then
        r = r + 1
        right = starts[r] or length
      end
    end
  end
  table.sort(places)
  return places
end

-- Takes k neighbours of a row, which are free. Their run is cut; the others are not read again.
local function takeWindow(hall, row, start, k)
  local starts, ends = runsOf(row)
  local i = runAt(starts, start)
  local from, to = starts[i], ends[i]
  local text = row.text
  row.text = sub(text, 1, start) .. RESERVE[sub(text, start + 1, start + 1)] .. string.rep('r', k - 1) .. sub(text, start + k + 1)
  local before, behind = start > from, start + k < to
  if before and behind then
    ends[i] = start
    table.insert(starts, i + 1, start + k)
    table.insert(ends, i + 1, to)
  elseif before then ends[i] = start
  elseif behind then starts[i] = start + k
  else
    table.remove(starts, i)
    table.remove(ends, i)
  end
  touch(hall, row)
end

-- Takes these places (ascending, all free) of a row, neighbours at once.
local function takePlaces(hall, row, places)
  local from = 1
  for i = 1, #places do
    local place, next = places[i], places[i + 1]
    local behind = place + 2
    -- A capital begins a run of its own.
    if next ~= place + 1 or find(row.text, '^F', behind) then
      takeWindow(hall, row, places[from], place - places[from] + 1)
      from = i + 1
    end
  end
end

local function takeAny(hall, k)
  local seats, left = {}, k
  while left > 0 do
    local number, count = firstRow(hall, 'free', left), left
    if not number then number, count = fullestRow(hall, left) end
    local row = rowNumbered(hall, number)
    local places = central(row, count)
    takePlaces(hall, row, places)
    for _, place in ipairs(places) do seats[#seats + 1] = row.first + place end
    left = left - count
  end
  table.sort(seats)
  return seats
end

local function takeNamed(hall, seats)
  local at = 1
  while at <= #seats do
    local row, places = rowOf(hall, seats[at]), {}
    while at <= #seats and seats[at] < row.first + row.n do
      places[#places + 1] = seats[at] - row.first
      at = at + 1
    end
    takePlaces(hall, row, places)
  end
  return seats
end

-- What is written at the end. The changes of this batch, so that a buyer's later order sees the earlier one.
local admitted, newHolds, newKeys, keyArgs = {}, {}, {}, {}

local function judge(i)
  local want = wants[i]
  local item, orderId, buyer = want.item, want.orderId, buyers[i]
  if not item then return '10' end
  local mine = newHolds[buyer] or holds[i]
  if mine then
    mine = wholeHolds(mine)
    local at, number, _, taken = holdIn(mine, orderId)
    if at then return number == item.number and '0 ' .. taken .. ' ' .. seatsOfHold(mine, at, orderId, number, taken) or '-1' end
  end
  local name = names[i]
  local binding = name ~= '' and (newKeys[name] or bound[i])
  if binding then
    local first, fingerprint = match(binding, '^(%S+) %S+ (.*)$')
    return fingerprint == want.fingerprint and '1 ' .. first or '2'
  end
  if closedBy then return closedBy end
  local quantity, hall = want.quantity, item.hall
  local slots, others = freeSlots(mine, quantity)
  if not slots then return others == '' and '30' or '30 ' .. others end

  local row, start
  if want.seats then
    local taken = {}
    for _, seat in ipairs(want.seats) do
      if string.lower(letterAt(hall, seat)) ~= 'f' then taken[#taken + 1] = seat end
    end
    if #taken > 0 then return '40 ' .. concat(taken, '.') end
    if item.offSale then return '41' end
  else
    if item.free < quantity then return '41' end
    if want.kind == 't' then
      local number = firstRow(hall, 'longest', quantity)
      if not number then return '42' end
      row = rowNumbered(hall, number)
      start = bestWindow(row, quantity)
    end
  end
  if unsettled >= pipeMax then return '51' end

  local seats
  if want.seats then seats = takeNamed(hall, want.seats)
  elseif row then
    takeWindow(hall, row, start, quantity)
    seats = {}
    for place = start, start + quantity - 1 do seats[#seats + 1] = row.first + place end
  else seats = takeAny(hall, quantity) end
  local dotted = concat(seats, '.')
  noteSeats(hall, 'r', dotted)
  local hold = orderId .. ',' .. item.number .. ',q,' .. slots .. ',' .. dotted
  newHolds[buyer] = mine and mine .. ';' .. hold or hold
  if name ~= '' then
    local value = orderId .. boundAt .. want.fingerprint
    newKeys[name] = value
    local k = #keyArgs
    keyArgs[k + 1], keyArgs[k + 2] = name, value
  end
  admitted[#admitted + 1] = {
    head = item.number .. '\n' .. slots .. '\n' .. want.fingerprint,
    item = item, orderId = orderId, seats = dotted, buyer = buyer, name = name,
  }
  item.free = item.free - quantity
  item.taken = item.taken + quantity
  unsettled = unsettled + 1
  return '0 ' .. slots .. ' ' .. dotted
end

local replies = {}
for i = 1, n do replies[i] = judge(i) end

if #admitted > 0 then
  -- An entry of format 2 (src/model/stream-entry.ts): orders that are alike share a field.
  local entry = { 'NOMKSTREAM', '*', '2', epoch .. '\n' .. gate[9] .. '\n' .. ARGV[3] }
  local counts = { 'Q', unsettled }
  for i = 1, w do
    local item = items[i]
    if item and item.taken > 0 then
      local id, amount, currency, code = match(item.text, '^(%S+) (%S+) (%S+) (.*)$')
      local e, c = #entry, #counts
      entry[e + 1], entry[e + 2] = 'i' .. item.number, id .. '\n' .. code .. '\n' .. amount .. '\n' .. currency
      counts[c + 1], counts[c + 2] = 'h:' .. item.number, item.held + item.taken
      counts[c + 3], counts[c + 4] = 'q:' .. item.number, item.queued + item.taken
    end
  end
  local first = 1
  for i = 1, #admitted do
    local next = admitted[i + 1]
    if not next or next.head ~= admitted[first].head then
      local ids, seats, parts = {}, {}, {}
      for j = first, i do
        local one = admitted[j]
        ids[#ids + 1], seats[#seats + 1] = one.orderId, one.seats
        parts[#parts + 1] = not keyed and one.buyer or one.name ~= '' and one.name or one.buyer .. '\n'
      end
      local e = #entry
      entry[e + 1] = (keyed and 'k' or 'o') .. #ids
      entry[e + 2] = admitted[first].head .. '\n' .. concat(ids, ' ') .. '\n' .. concat(seats, ' ') .. '\n' .. concat(parts, '\n')
      first = i + 1
    end
  end
  if placedBy then
    local e = #entry
    entry[e + 1], entry[e + 2] = 'by', placedBy
  end
  local holdArgs = {}
  for buyer, hold in pairs(newHolds) do
    local h = #holdArgs
    holdArgs[h + 1], holdArgs[h + 2] = buyer, hold
  end
  if not call('XADD', KEYS[5], unpack(entry)) then return 0 end
  call('HSET', KEYS[3], unpack(holdArgs))
  if #keyArgs > 0 then call('HSET', KEYS[4], unpack(keyArgs)) end
  call('HSET', ITEMS, unpack(counts))
  writeSeats()
  call('PUBLISH', ARGV[4], ARGV[5])
end

return gate[9] .. ' ' .. gate[4] .. ' ' .. gate[5] .. ' ' .. gate[8] .. '\n'
  .. concat(static, '\n') .. '\n' .. concat(replies, '\n')
