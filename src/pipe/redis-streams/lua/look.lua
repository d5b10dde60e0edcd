--[[
  Finds the work of some channels. The names of streams follow from the epochs; all keys of a channel share its tag.

  KEYS[4i-3…]  for channel i: epochs, head, retry, dead
  ARGV[i]      what the names of its streams begin with; `<epoch>:stream` follows

  Returns for each channel 0 (nothing), or
    letters, messages that wait to be tried again, those of them that are due,
    then for each stream that has entries, or may be removed: epoch, entries, messages (by the first of its entries)
]]
-- @include _messages

local SAMPLE = 4
local nowMs
local function dueIn(retry)
  if not nowMs then
    local time = redis.call('TIME')
    nowMs = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  end
  return redis.call('ZCOUNT', retry, '-inf', nowMs)
end

local all = {}
for i = 1, #ARGV do
  local epochs, head, retry, dead = unpack(KEYS, i * 4 - 3, i * 4)
  local letters = redis.call('HLEN', dead)
  local waiting = redis.call('ZCARD', retry)
  local found = { letters, waiting, waiting > 0 and dueIn(retry) or 0 }
  local inForce
  for _, epoch in ipairs(redis.call('SMEMBERS', epochs)) do
    local stream = ARGV[i] .. epoch .. ':stream'
    local length = redis.call('XLEN', stream)
    if length > 0 then
      local sample = redis.call('XRANGE', stream, '-', '+', 'COUNT', SAMPLE)
      table.insert(found, epoch)
      table.insert(found, length)
      table.insert(found, math.ceil(messagesIn(sample) * length / #sample))
    else
      inForce = inForce or tonumber(redis.call('HGET', head, 'epoch') or nil) or -1
      if tonumber(epoch) < inForce then
        table.insert(found, epoch)
        table.insert(found, 0)
        table.insert(found, 0)
      end
    end
  end
  all[i] = (letters > 0 or waiting > 0 or #found > 3) and found or 0
end
return all
