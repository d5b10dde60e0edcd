--[[
  Returns the first and last entries of a channel's streams.

  KEYS[1]  epochs
  KEYS[2]  retry
  KEYS[3]  decided
  ARGV[1]  what the names of the channel's streams begin with; `<epoch>:stream` follows

  Returns how many messages wait to be tried again, how many were ever decided, then for each stream that has entries: epoch, id
  of the first, of the last.
]]
local found = { redis.call('ZCARD', KEYS[2]), tonumber(redis.call('GET', KEYS[3]) or 0) }
for _, epoch in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local stream = ARGV[1] .. epoch .. ':stream'
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  if first then
    table.insert(found, epoch)
    table.insert(found, first[1])
    table.insert(found, redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1][1])
  end
end
return found
