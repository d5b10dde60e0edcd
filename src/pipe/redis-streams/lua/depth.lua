--[[
  Counts the messages in a channel's streams and among those to be tried again. Long streams are counted in several calls, so that
  none takes long; what fits into one is exact.

  KEYS[1]  epochs
  KEYS[2]  retry
  ARGV[1]  what the names of the channel's streams begin with; `<epoch>:stream` follows
  ARGV[2]  where the last call stopped: its epoch ('' this is the first)
  ARGV[3]  … and the entry it came to

  Returns the count, and the epoch and entry from which to go on ('' '' that was all).
]]
-- @include _messages

local CHUNK, MESSAGES_MAX = 128, 10000
local epochs = redis.call('SMEMBERS', KEYS[1])
table.sort(epochs, function(one, other) return tonumber(one) < tonumber(other) end)
local count = ARGV[2] == '' and redis.call('ZCARD', KEYS[2]) or 0
local after = tonumber(ARGV[2])
for _, epoch in ipairs(epochs) do
  local number = tonumber(epoch)
  if not after or number >= after then
    local from = number == after and '(' .. ARGV[3] or '-'
    repeat
      local entries = redis.call('XRANGE', ARGV[1] .. epoch .. ':stream', from, '+', 'COUNT', CHUNK)
      count = count + messagesIn(entries)
      if #entries < CHUNK then break end
      if count >= MESSAGES_MAX then return { count, epoch, entries[#entries][1] } end
      from = '(' .. entries[#entries][1]
    until false
  end
end
return { count, '', '' }
