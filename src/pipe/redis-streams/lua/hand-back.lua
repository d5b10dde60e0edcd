--[[
  Hands back entries that were read and not decided: sets a long idle time, so that the next worker that looks claims them.

  KEYS[1]  stream
  ARGV[1]  consumer
  ARGV[2]  the idle time to set, in ms
  ARGV[3…] ids of entries

  Returns how many.
]]
local stream, consumer = KEYS[1], ARGV[1]
local count = 0
for i = 3, #ARGV do
  local pending = redis.pcall('XPENDING', stream, 'ledger', ARGV[i], ARGV[i], 1)
  if pending.err then return count end
  if pending[1] and pending[1][2] == consumer then
    redis.call('XCLAIM', stream, 'ledger', consumer, 0, ARGV[i], 'IDLE', ARGV[2], 'JUSTID')
    count = count + 1
  end
end
return count
