--[[
  Takes a sale out, with all that is kept for it, in one step.

  KEYS[1..5]  gate, epochs, retry, dead, decided
  then        items, holds, keys, house, stream of each registered epoch
  ARGV[1]     'finished': only if it is shut, no stream has an entry, and nothing is to be tried again or dead
  then        these epochs

  Returns {'removed'}, {'busy'}: it is not finished, or {'epochs', …}: others are registered than the caller thought.
]]
local call = redis.call
local expected = {}
for i = 2, #ARGV do expected[ARGV[i]] = true end
local registered, known = call('SMEMBERS', KEYS[2]), true
for _, epoch in ipairs(registered) do known = known and expected[epoch] end
if not known then return { 'epochs', unpack(registered) } end
if ARGV[1] == 'finished' then
  local open = call('EXISTS', KEYS[1]) == 1 and not call('HGET', KEYS[1], 'shut')
  local left = call('EXISTS', KEYS[3], KEYS[4])
  for i = 10, #KEYS, 5 do left = left + call('XLEN', KEYS[i]) end
  if open or left > 0 then return { 'busy' } end
end
for _, key in ipairs(KEYS) do call('UNLINK', key) end
return { 'removed' }
