--[[
  Decides a batch of likes of one shard, one after the other, and appends those that changed something to the shard's stream as one
  entry, all in one step. What a pair is now is known if Redis has its record, if the filter of the subject is complete and says that
  this user never liked it, or if the caller brings the ledger's row, read after a question of ours that is not too old. Otherwise the
  caller is asked to read the row.

  Idempotent by the number of the call: a call that is sent again gets the answers of the first time. Nothing is written before
  everything is decided, and the stream comes first: if it is missing, nothing else is touched.

  KEYS[1..6]  head; stream, subjects, pairs, settled of the epoch that the caller believes in force; answers of this caller's slot
  ARGV[1]     that epoch
  ARGV[2]     the prefix of the names of filters
  ARGV[3..5]  how many pairs and entries may be unsettled, how many subjects may be in Redis, how many users may be in filters
  ARGV[6]     how old an answer to a question of ours may be, in ms
  ARGV[7..8]  after how many ms a caller is asked to check that a subject exists, and after how many it must
  ARGV[9]     for how many ms answers are kept
  ARGV[10..11] channel and message that tell of the new entry
  ARGV[12]    the number of this call in its slot: it only grows
  ARGV[13..14] n, s: how many likes, of how many subjects
  then        s times: subject; `<count> <rev> <at> <asked>` as the ledger has it, or nothing
  then        the users' marks (user-mark.ts), 6 characters each
              what is wanted: 1 or 0 each
              if s > 1, the place of the subject, two hexadecimal digits each, from 0
              the rows that were read: `<1 or 0><asked>` or `-` each, with blanks; nothing if there are none
              n times `<subject>\n<user>`

  Returns a number if nothing was decided: 0, the shard is stale; -1, a later call had this slot; else the epoch in force, which is not
  the caller's. Otherwise lines:
    now, by Redis' clock: what the caller brings back as `asked`
    s times   <count> <unsettled pairs> <at> <1 if the caller is to check that it exists>; nothing if it is not in Redis
    n letters c: changed; u: it was so already; a: bring the row; l: bring the subject and the row; f: full
]]
-- @include _server
-- @include _subject
-- @include _filter

-- Locals are faster than globals, and these are used for every like.
local KEYS, ARGV = KEYS, ARGV
local call, byte, sub, match = redis.call, string.byte, string.sub, string.match

local head = call('HMGET', KEYS[1], 'epoch', 'run', 'replid', 'shut', 'n', 'unsettled', 'users')
if not head[1] or not head[2] or head[4] then return 0 end
-- A restarted server or a promoted replica may have lost its last writes, and looks healthy otherwise.
if not isServer(head[2], head[3] or '') then return 0 end
if head[1] ~= ARGV[1] then return tonumber(head[1]) end

local answered = call('GET', KEYS[6])
if answered then
  local number, answers = match(answered, '^(%d+)\n(.*)$')
  if number == ARGV[12] then return answers end
  if tonumber(number) > tonumber(ARGV[12]) then return -1 end
end

local begin, unsettledMax, subjectsMax = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local askedMs, checkMs, checkMsMax = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local n, s = tonumber(ARGV[13]), tonumber(ARGV[14])
if #ARGV ~= 18 + 2 * s + n then error('decide: arguments are missing') end
local marksAt = 15 + 2 * s
local userMarks, wants, places, rowsText = readMarks(ARGV[marksAt], n), ARGV[marksAt + 1], ARGV[marksAt + 2], ARGV[marksAt + 3]
local fieldsAt = marksAt + 3
if n < 1 or s < 1 or not userMarks or not match(wants, '^[01]+$') or #wants ~= n
  or #places ~= (s > 1 and 2 * n or 0)
then
  error('decide: arguments are missing')
end
local placeOfLike, names, brought, rows = {}, {}, {}, nil
for i = 1, n do
  local place = s == 1 and 1 or tonumber(sub(places, 2 * i - 1, 2 * i), 16) + 1
  if place > s then error('decide: not the place of a subject') end
  placeOfLike[i] = place
end
for i = 1, s do
  names[i], brought[i] = ARGV[13 + 2 * i], ARGV[14 + 2 * i]
  if brought[i] ~= '' and not match(brought[i], '^%d+ %d+ %d+ %d+$') then error('decide: not the base of a subject') end
end
if rowsText ~= '' then
  rows = {}
  for row in string.gmatch(rowsText, '%S+') do rows[#rows + 1] = row end
  if #rows ~= n then error('decide: rows are missing') end
end

local nowMs = now()
local function isFresh(asked) return asked <= nowMs and nowMs - asked <= askedMs end

-- The subjects. One that is not in Redis comes in with what the caller brings, if that is fresh enough.
local subjects, isKnown, isFull, dirty, due = {}, {}, {}, {}, {}
local texts = call('HMGET', KEYS[3], unpack(names))
local added = 0
for i = 1, s do
  local of = texts[i] and readSubject(names[i], texts[i])
  local count, rev, at, asked = match(brought[i], '^(%d+) (%d+) (%d+) (%d+)$')
  if asked and isFresh(tonumber(asked)) then
    count, rev, at, asked = tonumber(count), tonumber(rev), tonumber(at), tonumber(asked)
    if of then
      -- While something is unsettled, a newer count may include it already: settle.lua brings the count together with the news.
      if of.unsettled == 0 and rev > of.rev then of.count, of.rev, of.at = count, rev, at end
      if asked > of.checked then of.checked = asked end
      dirty[i] = true
    elseif call('HLEN', KEYS[3]) + added >= subjectsMax then
      isFull[i] = true
    else
      -- A count of 0 says that no row is liked: an empty filter is complete.
      of = { name = names[i], count = count, rev = rev, at = at, delta = 0, unsettled = 0, kept = 0, checked = asked, claimed = 0,
        used = nowMs, state = count == 0 and 'c' or 'i', filled = 0, buckets = 1 }
      dirty[i], added = true, added + 1
    end
  end
  subjects[i] = of or false
  if of then
    isKnown[i] = nowMs - of.checked <= checkMsMax
    if isKnown[i] and nowMs - math.max(of.checked, of.claimed) > checkMs then
      of.claimed, due[i], dirty[i] = nowMs, true, true
    end
    if nowMs - of.used >= 1000 then of.used, dirty[i] = nowMs, true end
  end
end

-- The likes. `records` has the pairs that this call changes, so that a later like of the same pair sees the earlier one.
local found = call('HMGET', KEYS[4], unpack(ARGV, fieldsAt + 1, fieldsAt + n))
local records, changed, codes = {}, {}, {}
-- A pair without a record has nothing unsettled: the count includes all that was decided on it, up to this number. An event that is
-- delivered again after its record has gone must not count a second time.
local number = tonumber(head[5])
local unsettled, depth, events = tonumber(head[6]), nil, 0
-- By subject: the lines of its entry and their records; the likes whose users go into its filter, negative if they
-- may be in it.
local lines, marked, newcomers = {}, {}, {}

-- The buckets of users without a record, all at once.
local strangers = {}
for i = 1, n do
  local place = placeOfLike[i]
  if not found[i] and subjects[place] and subjects[place].state ~= 'x' then
    strangers[place] = strangers[place] or {}
    table.insert(strangers[place], i)
  end
end
for place, likes in pairs(strangers) do readBuckets(begin, subjects[place], userMarks, likes) end

local function keep(field, record)
  if records[field] == nil then changed[#changed + 1] = field end
  records[field] = record
end

for i = 1, n do
  local place, field = placeOfLike[i], ARGV[fieldsAt + i]
  local of, want, code = subjects[place], byte(wants, i) - 48, nil
  if isFull[place] then code = 'f'
  elseif not of or not isKnown[place] then code = 'l'
  else
    local record, liked, isNew, isRead = records[field], nil, false, false
    if record == nil and found[i] then record = readPair(found[i]) end
    if record then
      liked = record.liked
    elseif of.state == 'c' and not isInFilter(begin, of, userMarks, i) then
      liked, isNew = 0, true
    elseif rows and rows[i] ~= '-' and isFresh(tonumber(sub(rows[i], 2))) then
      liked, isRead = byte(rows[i]) - 48, true
    end
    if not liked then code = 'a'
    elseif liked == want then
      code = 'u'
      if isRead then
        -- Whoever clicks again does not make us ask again.
        keep(field, { liked = liked, base = liked, n = 0, baseN = number, settled = nowMs })
        of.kept, dirty[place] = of.kept + 1, true
      end
    else
      depth = depth or call('XLEN', KEYS[2])
      if unsettled >= unsettledMax or depth >= unsettledMax then code = 'f'
      else
        code = 'c'
        if not record then
          record = { base = liked, n = 0, baseN = number, settled = nowMs }
          of.kept = of.kept + 1
        end
        if record.settled > 0 then
          of.unsettled, unsettled, record.settled = of.unsettled + 1, unsettled + 1, 0
        end
        record.liked = want
        of.delta, dirty[place] = of.delta + want - liked, true
        keep(field, record)
        if not lines[place] then lines[place], marked[place], newcomers[place] = {}, {}, {} end
        local m = #lines[place] + 1
        lines[place][m] = (want == 1 and '+' or '-') .. sub(field, #of.name + 2)
        marked[place][m] = record
        -- The first decision on this pair since the subject came into Redis: from now on the filter must know the user.
        if record.n == 0 then newcomers[place][#newcomers[place] + 1] = isNew and i or -i end
        events = events + 1
      end
    end
  end
  codes[i] = code
end

if events > 0 then
  -- The name of the entry's first field is its format: empty for 1 (src/model/like-entry.ts).
  local entry = { 'NOMKSTREAM', '*', '', ARGV[1] .. '\n' .. nowMs }
  if number + events >= 2 ^ 40 then return 0 end
  for i = 1, s do
    if lines[i] then
      for m, record in ipairs(marked[i]) do
        record.n = number + m
        lines[i][m] = record.n .. '\n' .. lines[i][m]
      end
      entry[#entry + 1] = 'l' .. #lines[i]
      entry[#entry + 1] = names[i] .. '\n' .. table.concat(lines[i], '\n')
      number = number + #lines[i]
    end
  end
  if not call('XADD', KEYS[2], unpack(entry)) then return 0 end
end

if #changed > 0 then
  local fields, settled = {}, {}
  for i, field in ipairs(changed) do
    local record = records[field]
    fields[2 * i - 1], fields[2 * i] = field, writtenPair(record)
    if record.settled > 0 then settled[#settled + 1] = nowMs .. ' ' .. field end
  end
  call('HSET', KEYS[4], unpack(fields))
  if #settled > 0 then call('RPUSH', KEYS[5], unpack(settled)) end
end

local room = { users = tonumber(head[7]), max = tonumber(ARGV[5]) }
for i, likes in pairs(newcomers) do
  for _, like in ipairs(likes) do addToFilter(begin, subjects[i], userMarks, math.abs(like), room, like > 0) end
  saveFilter(begin, subjects[i])
end

local fields, answers = {}, { nowMs }
for i = 1, s do
  local of = subjects[i]
  if dirty[i] then
    fields[#fields + 1] = names[i]
    fields[#fields + 1] = writtenSubject(of)
  end
  answers[i + 1] = of and of.count + of.delta .. ' ' .. of.unsettled .. ' ' .. of.at .. ' ' .. (due[i] and 1 or 0) or ''
end
if #fields > 0 then call('HSET', KEYS[3], unpack(fields)) end
answers[s + 2] = table.concat(codes)
local reply = table.concat(answers, '\n')

if events > 0 then
  call('HSET', KEYS[1], 'n', number, 'unsettled', unsettled, 'users', room.users)
  call('SET', KEYS[6], ARGV[12] .. '\n' .. reply, 'PX', ARGV[9])
  call('PUBLISH', ARGV[10], ARGV[11])
end
return reply
