--[[
  The ledger has committed these events, or has dropped them for good; and it has these counts, or has no such subject. Repeated, late
  or in another order it comes to the same: an event counts when Redis is told of it for the first time, and of two counts that with the
  larger rev. Touches no record of a pair: which are settled follows from their numbers. Begins a new generation of records if it is time.

  KEYS[1..5]  head; subjects, told ahead, both generations of pairs of the epoch of the events
  ARGV[1]     that epoch
  ARGV[2]     the ledger's epoch at the commit: if it is above the one in force, the shard is shut
  ARGV[3]     for how many ms records of settled pairs are kept at least
  ARGV[4]     the numbers of the events as ranges, [first,last,first,last,…] in order
  ARGV[5]     for each subject [count,rev,at], or [-1,0,0]: it does not exist; and behind it its events: for each range of numbers of
              likes the first and how many, for likes taken back the first and how many below zero
  ARGV[6…]    the subjects

  Returns how many events were settled, as text; or a number: the epoch in force, which is not that of the events, 0 if there is none.
]]
-- @include _subject
-- @include _generations
-- @include _told

local call = redis.call
local spans, lists = cjson.decode(ARGV[4]), cjson.decode(ARGV[5])
if #lists ~= #ARGV - 5 or #spans % 2 ~= 0 then error('settle: arguments are missing') end
for _, list in ipairs(lists) do
  if #list < 3 or #list % 2 ~= 1 then error('settle: not the base of a subject and its events') end
end

local head = call('HMGET', KEYS[1], 'epoch', 'server', 'n', 'told', 'unsettled', 'gen', 'edge', 'edgeAt')
if not head[2] then return 0 end
local inForce = tonumber(head[1])
if tonumber(ARGV[2]) > inForce then call('HSET', KEYS[1], 'shut', 1) end
if head[1] ~= ARGV[1] then return inForce end
local told, gen, edge, edgeAt = tonumber(head[4]), tonumber(head[6]), tonumber(head[7]), tonumber(head[8])
local nowMs = now()

local ranges = #spans > 0 and toldRanges(KEYS[3], told, spans[1], spans[#spans]) or {}
local isAllNew = #ranges == 2 and spans[1] > told
local texts = #lists > 0 and call('HMGET', KEYS[2], unpack(ARGV, 6)) or {}
local values = {}
for i, list in ipairs(lists) do
  local of = texts[i] and readSubject(ARGV[5 + i], texts[i])
  if of then
    for at = 4, #list, 2 do
      local from, count = list[at], math.abs(list[at + 1])
      local untold = isAllNew and count or untoldIn(ranges, from, from + count - 1)
      of.delta = of.delta - (list[at + 1] > 0 and untold or -untold)
      of.unsettled = of.unsettled - untold
    end
    if #list > 3 then of.gen = gen end
    -- One that does not exist is loaded anew for the next like: then the ledger says so.
    of.checked, of.claimed = list[1] < 0 and 0 or nowMs, 0
    if list[1] >= 0 and list[2] > of.rev then of.count, of.rev, of.at = list[1], list[2], list[3] end
    values[#values + 1] = of.name
    values[#values + 1] = writtenSubject(of)
  end
end
if #values > 0 then call('HSET', KEYS[2], unpack(values)) end

local settled = 0
if #spans > 0 then
  for i = 1, #spans, 2 do settled = settled + untoldIn(ranges, spans[i], spans[i + 1]) end
  if settled > 0 then
    if isAllNew and #spans == 2 and spans[1] == told + 1 then told = spans[2]
    else told = addTold(KEYS[3], ranges, spans) end
    if spans[1] <= edge then edgeAt = nowMs end
    call('HSET', KEYS[1], 'told', told, 'unsettled', tonumber(head[5]) - settled, 'edgeAt', edgeAt)
  end
  -- So that a busy shard cleans up after itself.
  if told >= edge and nowMs - edgeAt >= tonumber(ARGV[3]) then
    local _, old = generations(gen, KEYS[4], KEYS[5])
    turnOver(KEYS[1], gen, old, tonumber(head[3]), nowMs)
  end
end
return tostring(settled)
