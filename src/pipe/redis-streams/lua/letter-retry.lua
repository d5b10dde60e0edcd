--[[
  Puts a dead letter back into the stream of its epoch, with its tries reset.

  KEYS[1]  dead
  KEYS[2]  epochs
  ARGV[1]  what the names of the channel's streams begin with; `<epoch>:stream` follows
  ARGV[2]  id of the letter
  ARGV[3]  Pub/Sub channel of wake-ups
  ARGV[4]  the channel's name as it is written in wake-ups; for a sale its id

  Returns 1, or 0: there is no such letter.
]]
local dead, epochs = KEYS[1], KEYS[2]
local text = redis.call('HGET', dead, ARGV[2])
if not text then return 0 end
local letter = cjson.decode(text)
redis.call('SADD', epochs, letter.epoch)
redis.call('XADD', ARGV[1] .. letter.epoch .. ':stream', '*', unpack(letter.fields))
redis.call('HDEL', dead, ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4] .. ' ' .. letter.epoch)
return 1
