--[[
  The ledger has committed these events, or has dropped them for good; and it has these counts, or has no such subject. Repeated, late
  or in another order it comes to the same: of two events of a pair the one with the larger n counts, of two counts that with the larger
  rev. Does nothing to pairs and subjects that are not in Redis. Deletes some old records on the way.

  KEYS[1..4]  head; subjects, pairs, settled of the epoch of the events
  ARGV[1]     that epoch
  ARGV[2]     the ledger's epoch at the commit: if it is above the one in force, the shard is shut
  ARGV[3]     for how many ms settled pairs are kept at least
  ARGV[4..5]  n, s: how many events, of how many subjects
  then        s times: subject; `<count> <rev> <at>`, or nothing: it does not exist
  then        the n of the events, with blanks; liked or not: 1 or 0 each; n times `<subject>\n<user>`

  Returns how many pairs were settled, as text; or a number: the epoch in force, which is not that of the events, 0 if there is none.
]]
-- @include _subject
-- @include _subjects-of-call
-- @include _prune

local call, match = redis.call, string.match
local n, s = tonumber(ARGV[4]), tonumber(ARGV[5])
if #ARGV ~= 7 + 2 * s + n or #ARGV[7 + 2 * s] ~= n then error('settle: arguments are missing') end
local numbers, likes = {}, ARGV[7 + 2 * s]
for number in string.gmatch(ARGV[6 + 2 * s], '%d+') do numbers[#numbers + 1] = tonumber(number) end
if #numbers ~= n then error('settle: numbers are missing') end
for i = 1, s do
  local base = ARGV[5 + 2 * i]
  if base ~= '' and not match(base, '^%d+ %d+ %d+$') then error('settle: not the base of a subject') end
end

local head = call('HMGET', KEYS[1], 'epoch', 'unsettled')
local inForce = tonumber(head[1] or 0)
if inForce > 0 and tonumber(ARGV[2]) > inForce then call('HSET', KEYS[1], 'shut', 1) end
if head[1] ~= ARGV[1] then return inForce end

local nowMs = now()
local fieldsAt = 7 + 2 * s
local found = n > 0 and call('HMGET', KEYS[3], unpack(ARGV, fieldsAt + 1, fieldsAt + n)) or {}
local records, changed, settled = {}, {}, {}
for i = 1, n do
  local field = ARGV[fieldsAt + i]
  local record = records[field] or (found[i] and readPair(found[i]))
  local of = record and subjectOf(match(field, '^[^\n]+'))
  if of and numbers[i] > record.baseN then
    if not records[field] then
      records[field] = record
      changed[#changed + 1] = field
    end
    local liked = string.byte(likes, i) - 48
    of.delta = of.delta + record.base - liked
    record.base, record.baseN = liked, numbers[i]
    if numbers[i] == record.n then
      record.settled = nowMs
      of.unsettled = of.unsettled - 1
      settled[#settled + 1] = nowMs .. ' ' .. field
    end
  end
end
for i = 1, s do
  local of, base = subjectOf(ARGV[4 + 2 * i]), ARGV[5 + 2 * i]
  if of then
    -- One that does not exist is loaded anew for the next like: then the ledger says so.
    of.checked, of.claimed = base == '' and 0 or nowMs, 0
    local count, rev, at = match(base, '^(%d+) (%d+) (%d+)$')
    if rev and tonumber(rev) > of.rev then of.count, of.rev, of.at = tonumber(count), tonumber(rev), tonumber(at) end
  end
end

if #changed > 0 then
  local fields = {}
  for i, field in ipairs(changed) do fields[2 * i - 1], fields[2 * i] = field, writtenPair(records[field]) end
  call('HSET', KEYS[3], unpack(fields))
end
if #settled > 0 then
  call('RPUSH', KEYS[4], unpack(settled))
  call('HINCRBY', KEYS[1], 'unsettled', -#settled)
end
-- More than it adds, so that a busy shard cleans up after itself.
prune(KEYS[4], KEYS[3], nowMs, tonumber(ARGV[3]), 2 * n + 1, subjectOf)
saveSubjects()
return tostring(#settled)
