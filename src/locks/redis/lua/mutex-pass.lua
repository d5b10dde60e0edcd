--[[
  Gives a mutex from one request of a client to the next of the same client, which is what happens most where many want the
  same one: the short way of mutex-serve.lua for a lone request of this kind.

  KEYS[1]  clock (see _frame.lua)
  KEYS[2]  lock
  KEYS[3]  queue
  ARGV[1]  rid of the holder
  ARGV[2]  rid of the next
  ARGV[3]  grace (see _frame.lua)
  ARGV[4]  there if the next one stands in the queue, and has given up if it does not

  Returns the token of the next; 0, and nothing is changed, if it is not as the client believes: then mutex-serve.lua does
  what is right.
]]
local lock = KEYS[2]
local value = redis.call('GET', lock)
if not value or string.find(value, ARGV[1] .. ' ', 1, true) ~= 1 then return 0 end
-- Also of one that never asked: it may have, should this come late. And a Redis that is full lets those write who began with
-- something that takes no memory.
if redis.call('ZREM', KEYS[3], ARGV[2]) == 0 and ARGV[4] then return 0 end

local time = redis.call('TIME')
local fraction = time[2]
if #fraction < 6 then fraction = string.sub('00000' .. fraction, -6) end
-- As text, like mutex-serve.lua.
local token = time[1] .. fraction
local last = redis.call('SET', KEYS[1], token, 'GET')
if last and last >= token then
  token = string.format('%.0f', last + 1)
  redis.call('SET', KEYS[1], token)
end
local since = time[1] .. string.sub(fraction, 1, 3)
redis.call('SET', lock, ARGV[2] .. ' ' .. token .. ' ' .. since .. ' ', 'PX', ARGV[3])
return tonumber(token)
