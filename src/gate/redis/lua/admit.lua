--[[
  Decides a batch of orders for one sale, one after the other, and appends those it admits to the sale's stream as one
  entry, all in one step. Idempotent by order id: an order that holds units already is answered the same and takes nothing.
  Orders are judged as in src/gate/memory.ts: item, order id, key, window, limit, stock; then the bound on the pipe.

  Redis is asked per batch and not per order: that is what makes a batch cheap. Nothing is written before everything is
  decided, and the stream comes first: if it is missing, nothing else is touched.

  KEYS[1..5]  gate, items, holds, keys, stream (the last four of the epoch that the caller believes in force)
  ARGV[1]     that epoch
  ARGV[2]     how many orders may be unsettled
  ARGV[3]     the process that asks
  ARGV[4..5]  channel and message that tell of the new entry
  ARGV[6]     n: how many orders
  ARGV[7]     w: how many different things they want
  ARGV[8]     1 if some have a key
  ARGV[9]     1 if a buyer comes more than once
  ARGV[10]    how long an order id is
  then        w times: item code, quantity, fingerprint
              all n order ids in one, a blank between them and blanks before those that are shorter; n buyers;
              if w > 1, for each order the number of what it wants (1 … w);
              if ARGV[8] is 1, for each order `<buyer>\n<key>`, or nothing;
              and last, if somebody placed some of them for their buyers: what stands in the entry's field `by`

  Returns a number if nothing was decided: 0, the gate is stale; else the epoch in force, which is not the caller's.
  Otherwise lines:
    <payWithin> <opens> <closes> <perBuyer>
    w times     <item number> <item id> <amount> <currency> <code>, or nothing: no such item
    the rest    <how many orders in a row> <their outcome of src/model/outcome.ts>, and behind it, after a blank each:
                  admitted: slots with dots    replayed: order id    limit_reached: the buyer's order ids
                or -1: the order id stands for another item
]]
-- @include _server

-- Locals are faster than globals, and these are used for every order.
local KEYS, ARGV = KEYS, ARGV
local call, find, match, sub, concat = redis.call, string.find, string.match, string.sub, table.concat

local gate = call('HMGET', KEYS[1], 'epoch', 'run', 'shut', 'opens', 'closes', 'paused', 'closed', 'perBuyer', 'payWithin',
  'replid')
local epoch, run = gate[1], gate[2]
if not epoch or not run or gate[3] then return 0 end
-- A restarted server or a promoted replica may have lost its last writes, and looks healthy otherwise.
if not isServer(run, gate[10] or '') then return 0 end
if epoch ~= ARGV[1] then return tonumber(epoch) end

local pipeMax, n, w, keyed, repeated = tonumber(ARGV[2]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9] == '1'
local ids, width = ARGV[11 + 3 * w], tonumber(ARGV[10])
local buyersAt = 11 + 3 * w
local wantsAt = buyersAt + n
local keysAt = w > 1 and wantsAt + n or wantsAt
local argsEnd = keyed and keysAt + n or keysAt
local placedBy = ARGV[argsEnd + 1]
if n < 1 or #ARGV ~= (placedBy and argsEnd + 1 or argsEnd) or #ids ~= n * (width + 1) - 1 then error('admit: arguments are missing') end

local stride = width + 1
local padded = find(ids, '  ', 1, true) or sub(ids, 1, 1) == ' '
local function idOf(i)
  local id = sub(ids, stride * (i - 1) + 1, stride * i - 1)
  return padded and match(id, '%S+') or id
end

-- The items that are wanted, each once.
local fields = { 'n', 'Q' }
for i = 1, w do
  fields[i + 2] = 'c:' .. ARGV[8 + 3 * i]
  fields[i + 2 + w] = 'X:' .. ARGV[8 + 3 * i]
end
local numbers = call('HMGET', KEYS[2], unpack(fields))
if not numbers[1] then return 0 end
local unsettled = tonumber(numbers[2])

local items, wants, static = {}, {}, {}
for i = 1, w do
  local quantity, offSale = tonumber(ARGV[9 + 3 * i]), numbers[i + 2 + w]
  local number = numbers[i + 2] or offSale
  if not quantity or quantity < 1 or quantity % 1 ~= 0 then error('admit: not a quantity') end
  wants[i], static[i] = false, ''
  if number then
    local item = items[number]
    if not item then
      local k = ':' .. number
      local of = call('HMGET', KEYS[2], 's' .. k, 't' .. k, 'b' .. k, 'h' .. k, 'q' .. k, 'o' .. k)
      local queued = tonumber(of[5])
      item = {
        number = number,
        text = of[1],
        free = of[2] - of[3] - of[4] - of[6],
        held = tonumber(of[4]),
        queued = queued,
        before = queued,
      }
      -- Nothing of it is free to anybody, but a repeat of an order still gets its answer.
      if offSale then item.free = 0 end
      items[number] = item
    end
    -- The slots of a buyer who holds nothing.
    local slots = '1'
    for slot = 2, quantity do slots = slots .. '.' .. slot end
    wants[i] = { item = item, quantity = quantity, fingerprint = ARGV[10 + 3 * i], slots = slots }
    static[i] = number .. ' ' .. item.text
  end
end
if w > 1 then
  for i = wantsAt + 1, wantsAt + n do
    if wants[tonumber(ARGV[i])] == nil then error('admit: not a number of what is wanted') end
  end
end
local only = w == 1 and wants[1]
local time = call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)

local closedBy
if gate[7] == '1' then closedBy = '21'
elseif nowMs < tonumber(gate[4]) then closedBy = '20'
elseif nowMs >= tonumber(gate[5]) then closedBy = '21'
elseif gate[6] == '1' then closedBy = '22' end
local perBuyer = tonumber(gate[8])

-- @include _holds

-- The slots of a buyer who holds something: the lowest free ones, or nil and the buyer's order ids.
local function furtherSlots(mine, quantity)
  local taken, units, orders = {}, 0, {}
  for orderId, slots in string.gmatch(mine, '([^,;]+),%d+,[qs],([%d.]+)') do
    orders[#orders + 1] = orderId
    for slot in string.gmatch(slots, '%d+') do
      taken[slot] = true
      units = units + 1
    end
  end
  if units + quantity > perBuyer then return nil, table.concat(orders, ' ') end
  local slots, slot = {}, 0
  while #slots < quantity do
    slot = slot + 1
    local name = tostring(slot)
    if not taken[name] then slots[#slots + 1] = name end
  end
  return table.concat(slots, '.')
end

local holds = call('HMGET', KEYS[3], unpack(ARGV, buyersAt + 1, buyersAt + n))
local bound = keyed and call('HMGET', KEYS[4], unpack(ARGV, keysAt + 1, keysAt + n))
local boundAt = keyed and ' ' .. string.format('%.0f', nowMs) .. ' '

-- What is written at the end. The name of the entry's first field is its format: empty for 1 (src/model/formats.ts).
local holdArgs, added, keyArgs, k = {}, 0, {}, 0
local entry = { 'NOMKSTREAM', '*', '', epoch .. '\n' .. gate[9] .. '\n' .. ARGV[3] }
for _, item in pairs(items) do
  local id, amount, currency, code = match(item.text, '^(%S+) (%S+) (%S+) (.*)$')
  entry[#entry + 1] = 'i' .. item.number
  entry[#entry + 1] = id .. '\n' .. code .. '\n' .. amount .. '\n' .. currency
end
-- Admitted orders that are alike share one field: what they have in common, their ids, and their buyers (with keys: each buyer
-- with its key).
local groupHead, groupIds, groupNames, grouped = nil, {}, {}, 0
local function writeGroup(count, head, allIds, allNames)
  local e = #entry
  entry[e + 1] = (keyed and 'k' or 'o') .. count
  entry[e + 2] = head .. '\n' .. allIds .. '\n' .. allNames
end
local function beginGroup(head)
  if grouped > 0 then
    writeGroup(grouped, groupHead, concat(groupIds, ' ', 1, grouped), concat(groupNames, '\n', 1, grouped))
  end
  groupHead, grouped = head, 0
end
-- The changes of this batch, so that a buyer's later order sees the earlier one.
local newHolds, newKeys = {}, {}

local function bind(name, orderId, fingerprint)
  local binding = orderId .. boundAt .. fingerprint
  keyArgs[k + 1], keyArgs[k + 2] = name, binding
  k = k + 2
  return binding
end

-- Decides one order, whatever the case.
local function judge(i)
  local want = only
  if w > 1 then want = wants[tonumber(ARGV[wantsAt + i])] end
  if not want then return '10' end
  local item, orderId, buyer = want.item, idOf(i), ARGV[buyersAt + i]
  local mine = newHolds[buyer] or holds[i]
  local slots, others = want.slots, ''
  if mine then
    mine = wholeHolds(mine)
    local at, number, _, taken = holdIn(mine, orderId)
    if at then return number == item.number and '0 ' .. taken or '-1' end
  end
  local name = keyed and ARGV[keysAt + i]
  if name == '' then name = false end
  local binding = name and (newKeys[name] or bound[i])
  if binding then
    local first, fingerprint = match(binding, '^(%S+) %S+ (.*)$')
    return fingerprint == want.fingerprint and '1 ' .. first or '2'
  end
  if closedBy then return closedBy end
  local quantity = want.quantity
  if mine then
    slots, others = furtherSlots(mine, quantity)
  elseif quantity > perBuyer then
    slots = nil
  end
  if not slots then return others == '' and '30' or '30 ' .. others end
  if item.free < quantity then return '41' end
  if unsettled >= pipeMax then return '51' end

  local hold = orderId .. ',' .. item.number .. ',q,' .. slots
  if mine then hold = mine .. ';' .. hold end
  holdArgs[added + 1], holdArgs[added + 2] = buyer, hold
  added = added + 2
  local head = item.number .. '\n' .. slots .. '\n' .. want.fingerprint
  if head ~= groupHead then beginGroup(head) end
  grouped = grouped + 1
  groupIds[grouped], groupNames[grouped] = orderId, name or (keyed and buyer .. '\n' or buyer)
  newHolds[buyer] = hold
  if name then newKeys[name] = bind(name, orderId, want.fingerprint) end
  item.free = item.free - quantity
  item.queued = item.queued + quantity
  unsettled = unsettled + 1
  return '0 ' .. slots
end

-- Equal replies in a row become one line with their count: in a crowd mostly a single line.
local replies, r, last, times = {}, 0, nil, 0

-- The common case: all want the same, no buyer comes twice, the sale is open. Buyers who hold nothing and whose key is new are
-- decided here, without checking again what is the same for all of them.
local quick = only and not repeated and not closedBy and only.quantity <= perBuyer
local item, quantity, admitted, holdTail, quickHead, fingerprint
local room, refused, taken = 0, nil, 0
local function measure()
  item.free = item.free - taken * quantity
  item.queued = item.queued + taken * quantity
  unsettled = unsettled + taken
  taken = 0
  room = math.min(math.floor(item.free / quantity), pipeMax - unsettled)
  refused = item.free < quantity and '41' or '51'
end
if quick then
  item, quantity, fingerprint = only.item, only.quantity, only.fingerprint
  admitted = '0 ' .. only.slots
  holdTail = ',' .. item.number .. ',q,' .. only.slots
  if holdTail == CROWD then holdTail = '' end
  quickHead = item.number .. '\n' .. only.slots .. '\n' .. fingerprint
  measure()
end

-- The fastest path, for a crowd: nobody holds anything or has a key, and there is room for all.
local crowd = quick and not keyed and not padded and room >= n
for i = 1, crowd and n or 0 do
  if holds[i] then
    crowd = false
    break
  end
end
if crowd then
  for i = 1, n do
    holdArgs[2 * i - 1] = ARGV[buyersAt + i]
    holdArgs[2 * i] = sub(ids, stride * (i - 1) + 1, stride * i - 1) .. holdTail
  end
  added, taken, last, times = 2 * n, n, admitted, n
  writeGroup(n, quickHead, ids, concat(ARGV, '\n', buyersAt + 1, buyersAt + n))
end

for i = crowd and n + 1 or 1, n do
  local reply
  if not quick or holds[i] or (keyed and bound[i]) then
    if quick then measure() end
    reply = judge(i)
    if quick then measure() end
  elseif taken >= room then
    measure()
    reply = refused
  else
    local buyer, orderId = ARGV[buyersAt + i], idOf(i)
    holdArgs[added + 1], holdArgs[added + 2] = buyer, orderId .. holdTail
    added = added + 2
    if keyed then
      local name = ARGV[keysAt + i]
      if name == '' then buyer = buyer .. '\n'
      else
        buyer = name
        bind(name, orderId, fingerprint)
      end
    end
    if groupHead ~= quickHead then beginGroup(quickHead) end
    grouped = grouped + 1
    groupIds[grouped], groupNames[grouped] = orderId, buyer
    taken = taken + 1
    reply = admitted
  end
  if reply == last then
    times = times + 1
  else
    if last then
      r = r + 1
      replies[r] = times .. ' ' .. last
    end
    last, times = reply, 1
  end
end
replies[r + 1] = times .. ' ' .. last

if added > 0 then
  if quick then measure() end
  local counts = { 'Q', unsettled }
  for number, each in pairs(items) do
    local c = #counts
    counts[c + 1], counts[c + 2] = 'h:' .. number, each.held + each.queued - each.before
    counts[c + 3], counts[c + 4] = 'q:' .. number, each.queued
  end
  beginGroup(nil)
  if placedBy then
    local e = #entry
    entry[e + 1], entry[e + 2] = 'by', placedBy
  end
  if not call('XADD', KEYS[5], unpack(entry)) then return 0 end
  call('HSET', KEYS[3], unpack(holdArgs))
  if k > 0 then call('HSET', KEYS[4], unpack(keyArgs)) end
  call('HSET', KEYS[2], unpack(counts))
  call('PUBLISH', ARGV[4], ARGV[5])
end

return gate[9] .. ' ' .. gate[4] .. ' ' .. gate[5] .. ' ' .. gate[8] .. '\n'
  .. concat(static, '\n') .. '\n' .. concat(replies, '\n')
