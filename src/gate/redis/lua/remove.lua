--[[
  Takes a sale out, with all that is kept for it, in one step.

  KEYS[1..6]  gate, epochs, retry, dead, decided, emptied
  then        items, holds, keys, house, seats, changes, stream of each registered epoch
  ARGV[1]     'finished': only if no stream has an entry, nothing is to be tried again or dead, and the gate cannot admit:
              its sale is over, or it was noted that a higher epoch has emptied it
  ARGV[2]     for how many seconds it is noted that the sale was emptied
  then        these epochs

  Returns {'removed'}; {'busy'}: it is not finished; {'stale'}: its gate is shut, or may have forgotten what it admitted;
  {'epochs', …}: others are registered than the caller thought.
]]
local KEYS_AN_EPOCH = 7
local call = redis.call
-- @include _server
local expected = {}
for i = 3, #ARGV do expected[ARGV[i]] = i - 3 end
local registered, known = call('SMEMBERS', KEYS[2]), true
for _, epoch in ipairs(registered) do known = known and expected[epoch] end
if not known then return { 'epochs', unpack(registered) } end

-- An open gate of a sale that is over knows all that was admitted, and admits nothing more. Its streams are empty, so the ledger
-- has decided all of it.
local function emptied(epoch, run, replid, shut, closes, closed)
  if tonumber(call('GET', KEYS[6]) or 0) > tonumber(epoch) then return 'removed' end
  local at = expected[epoch]
  if not run or shut or not at then return 'stale' end
  at = 7 + KEYS_AN_EPOCH * at
  if call('EXISTS', KEYS[at], KEYS[at + 6]) < 2 then return 'stale' end
  if not isServer(run, replid or '') then return 'stale' end
  local time = call('TIME')
  local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
  if closed ~= '1' and nowMs < tonumber(closes) then return 'busy' end
  call('SET', KEYS[6], epoch, 'EX', ARGV[2])
  return 'removed'
end

if ARGV[1] == 'finished' then
  local left = call('EXISTS', KEYS[3], KEYS[4])
  for i = 13, #KEYS, KEYS_AN_EPOCH do left = left + call('XLEN', KEYS[i]) end
  if left > 0 then return { 'busy' } end
  local gate = call('HMGET', KEYS[1], 'epoch', 'run', 'replid', 'shut', 'closes', 'closed')
  local said = gate[1] and emptied(unpack(gate, 1, 6)) or 'removed'
  if said ~= 'removed' then return { said } end
else
  call('UNLINK', KEYS[6])
end
for i, key in ipairs(KEYS) do
  if i ~= 6 then call('UNLINK', key) end
end
return { 'removed' }
