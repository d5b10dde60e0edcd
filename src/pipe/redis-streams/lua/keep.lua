--[[
  Resets the idle time of entries that their owner has in hand, so that nobody claims them.

  KEYS[1]  stream
  ARGV[1]  consumer
  ARGV[2…] ids of entries

  Returns the ids that have another owner by now. An entry that is not pending at all is not among them: it was decided, or Redis
  has lost it, and handing it over once more does no harm.
]]
local stream, consumer = KEYS[1], ARGV[1]
local lost = {}
for i = 2, #ARGV do
  local pending = redis.pcall('XPENDING', stream, 'ledger', ARGV[i], ARGV[i], 1)
  if pending.err then return {} end
  if pending[1] then
    if pending[1][2] == consumer then
      redis.call('XCLAIM', stream, 'ledger', consumer, 0, ARGV[i], 'JUSTID')
    else
      table.insert(lost, ARGV[i])
    end
  end
end
return lost
