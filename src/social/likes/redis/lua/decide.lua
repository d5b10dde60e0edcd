--[[
  Decides a batch of likes of one shard, one after the other, and appends those that changed something to the shard's stream as one
  entry, all in one step. What a pair is now is known if Redis has its record, if the filter of the subject is complete and says that
  this user never liked it, or if the caller brings the ledger's row, read after a question of ours that is not too old. Otherwise the
  caller is asked to read the row.

  Idempotent by the number of the call: a call that is sent again gets the answers of the first time. Nothing is written before
  everything is decided, and the stream comes first: if it is missing, nothing else is touched.

  KEYS[1..6]  head; stream, subjects, both generations of pairs of the epoch that the caller believes in force; answers of this caller's
              slot
  ARGV[1]     that epoch
  ARGV[2]     the prefix of the names of filters
  ARGV[3..5]  how many events and entries may be unsettled, how many subjects may be in Redis, how many users may be in filters
  ARGV[6]     how old an answer to a question of ours may be, in ms
  ARGV[7..8]  after how many ms a caller is asked to check that a subject exists, and after how many it must
  ARGV[9]     for how many ms answers are kept
  ARGV[10..11] channel and message that tell of the new entry
  ARGV[12]    the number of this call in its slot: it only grows
  ARGV[13]    not after this time by Redis' clock: by then its caller has been told that it failed
  ARGV[14..15] n, s: how many likes, of how many subjects
  then        s times: subject; `<count> <rev> <at> <asked>` as the ledger has it, or nothing
  then        how many likes each subject has here, less one, as the code of a character each: the likes come by subject
              the users' marks (user-mark.ts), 6 characters each
              what is wanted: 1 or 0 each
              the rows that were read: `<1 or 0><asked>` or `-` each, with blanks; nothing if there are none
              n times the user

  Returns a number if nothing was decided: 0, the shard is stale; -1, a later call had this slot; below that, it came too late, and this is
  Redis' clock below zero; else the epoch in force, which is not the caller's. Otherwise lines:
    now, by Redis' clock: what the caller brings back as `asked`
    s times   <count> <unsettled events> <at> <1 if the caller is to check that it exists>; nothing if it is not in Redis
    n letters c: changed; u: it was so already; a: bring the row; l: bring the subject and the row; f: full
]]
-- @include _server
-- @include _subject
-- @include _generations
-- @include _filter

-- Locals are faster than globals, and these are used for every like.
local KEYS, ARGV = KEYS, ARGV
local call, byte, sub, match, format = redis.call, string.byte, string.sub, string.match, string.format

local head = call('HMGET', KEYS[1], 'epoch', 'server', 'replid', 'shut', 'n', 'unsettled', 'users', 'gen')
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
local n, s = tonumber(ARGV[14]), tonumber(ARGV[15])
if #ARGV ~= 19 + 2 * s + n then error('decide: arguments are missing') end
local usersAt = 19 + 2 * s
local counts, userMarks, wants, rowsText = ARGV[usersAt - 3], readMarks(ARGV[usersAt - 2], n), ARGV[usersAt - 1], ARGV[usersAt]
if n < 1 or s < 1 or #counts ~= s or not userMarks or not match(wants, '^[01]+$') or #wants ~= n then
  error('decide: arguments are missing')
end
-- Of each subject the first of its likes.
local names, brought, firsts, fields, rows = {}, {}, { 1 }, {}, nil
for i = 1, s do
  local name = ARGV[14 + 2 * i]
  names[i], brought[i], firsts[i + 1] = name, ARGV[15 + 2 * i], firsts[i] + byte(counts, i) + 1
  if brought[i] ~= '' and not match(brought[i], '^%d+ %d+ %d+ %d+$') then error('decide: not the base of a subject') end
  for like = firsts[i], math.min(firsts[i + 1] - 1, n) do fields[like] = name .. '\n' .. ARGV[usersAt + like] end
end
if firsts[s + 1] ~= n + 1 then error('decide: not the likes of the subjects') end
if rowsText ~= '' then
  rows = {}
  for row in string.gmatch(rowsText, '%S+') do rows[#rows + 1] = row end
  if #rows ~= n then error('decide: rows are missing') end
end

local nowMs = now()
-- It was held up on its way. Meanwhile its user may have been told something else, here or elsewhere.
if nowMs > tonumber(ARGV[13]) then return -nowMs end
local function isFresh(asked) return asked <= nowMs and nowMs - asked <= askedMs end

-- The subjects. One that is not in Redis comes in with what the caller brings, if that is fresh enough.
local gen = tonumber(head[8])
local subjects, isKnown, isFull, dirty, due = {}, {}, {}, {}, {}
local texts = call('HMGET', KEYS[3], unpack(names))
local added = 0
for i = 1, s do
  local of = texts[i] and readSubject(names[i], texts[i])
  local count, rev, at, asked
  if brought[i] ~= '' then count, rev, at, asked = match(brought[i], '^(%d+) (%d+) (%d+) (%d+)$') end
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
      of = { name = names[i], count = count, rev = rev, at = at, delta = 0, unsettled = 0, gen = gen, checked = asked, claimed = 0,
        used = nowMs, filled = 0, buckets = 1, state = count == 0 and 'c' or 'i', first = '' }
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

local young, old = generations(gen, KEYS[4], KEYS[5])
local inYoung, inOld = call('HMGET', young, unpack(fields)), call('HMGET', old, unpack(fields))
-- `latest` has the records that this call has made, so that a later like of the same pair sees the earlier one.
local records, latest, codes = {}, {}, {}
local number, unsettled, depth = tonumber(head[5]), tonumber(head[6]), nil
local lines, entry, newcomers = {}, {}, {}
if number + n >= 2 ^ 40 then return 0 end

local function keep(field, record)
  records[#records + 1] = field
  records[#records + 1] = record
  latest[field] = record
end

for i = 1, s do
  local of, firstLine = subjects[i], #lines + 1
  local isOpen = of and isKnown[i]
  if isOpen and of.buckets > 1 then
    -- The buckets of users on whom nothing was decided so far, all at once.
    local strangers = {}
    for like = firsts[i], firsts[i + 1] - 1 do
      local record = inYoung[like] or inOld[like]
      if not record or #record == 1 then strangers[#strangers + 1] = like end
    end
    if #strangers > 0 then readBuckets(begin, of, userMarks, strangers) end
  end
  for like = firsts[i], firsts[i + 1] - 1 do
    local code
    if isFull[i] then code = 'f'
    elseif not isOpen then code = 'l'
    else
      local field, want = fields[like], byte(wants, like) - 48
      local record, liked, isNew, isRead = latest[field] or inYoung[like] or inOld[like], nil, false, false
      if record then
        liked = byte(record) - 48
      elseif of.state == 'c' and not isInFilter(of, userMarks, like) then
        liked, isNew = 0, true
      elseif rows and rows[like] ~= '-' and isFresh(tonumber(sub(rows[like], 2))) then
        liked, isRead = byte(rows[like]) - 48, true
      end
      if not liked then code = 'a'
      elseif liked == want then
        code = 'u'
        if isRead then
          -- Whoever clicks again does not make us ask again.
          keep(field, sub(rows[like], 1, 1))
          of.gen, dirty[i] = gen, true
        end
      else
        depth = depth or call('XLEN', KEYS[2])
        if unsettled >= unsettledMax or depth >= unsettledMax then code = 'f'
        else
          code = 'c'
          number, unsettled = number + 1, unsettled + 1
          of.delta, of.unsettled, of.gen, dirty[i] = of.delta + want - liked, of.unsettled + 1, gen, true
          local digits = format('%d', number)
          keep(field, sub(wants, like, like) .. digits)
          lines[#lines + 1] = digits
          lines[#lines + 1] = (want == 1 and '+' or '-') .. ARGV[usersAt + like]
          -- The first decision on this pair since the subject came into Redis: from now on the filter must know the user.
          if not record or #record == 1 then
            newcomers[#newcomers + 1] = i
            newcomers[#newcomers + 1] = isNew and like or -like
          end
        end
      end
    end
    codes[like] = code
  end
  if #lines >= firstLine then
    entry[#entry + 1] = 'l' .. (#lines - firstLine + 1) / 2
    entry[#entry + 1] = names[i] .. '\n' .. table.concat(lines, '\n', firstLine)
  end
end

-- The name of the entry's first field is its format: empty for 1 (src/model/like-entry.ts).
if #entry > 0 and not call('XADD', KEYS[2], 'NOMKSTREAM', '*', '', ARGV[1] .. '\n' .. nowMs, unpack(entry)) then return 0 end
if #records > 0 then call('HSET', young, unpack(records)) end

local room = { users = tonumber(head[7]), max = tonumber(ARGV[5]) }
for at = 1, #newcomers, 2 do
  local like = newcomers[at + 1]
  addToFilter(begin, subjects[newcomers[at]], userMarks, math.abs(like), room, like > 0)
end

local values, answers = {}, { nowMs }
for i = 1, s do
  local of = subjects[i]
  if dirty[i] then
    saveFilter(begin, of)
    values[#values + 1] = names[i]
    values[#values + 1] = writtenSubject(of)
  end
  answers[i + 1] = of and format('%d %d %d %d', shownCount(of), of.unsettled, of.at, due[i] and 1 or 0) or ''
end
if #values > 0 then call('HSET', KEYS[3], unpack(values)) end
answers[s + 2] = table.concat(codes)
local reply = table.concat(answers, '\n')

if #entry > 0 then
  call('HSET', KEYS[1], 'n', number, 'unsettled', unsettled, 'users', room.users)
  call('SET', KEYS[6], ARGV[12] .. '\n' .. reply, 'PX', ARGV[9])
  call('PUBLISH', ARGV[10], ARGV[11])
end
return reply
