--[[
  Somebody has given up an event that the ledger cannot take: from now on the pair is what the ledger's row says. Changes nothing if the
  pair was decided again since. May be repeated. If an older event of the pair may still come to the ledger, the row may change without a
  decision: then Redis forgets the pair, and whoever needs the row reads it. The subject's count changes when Redis is told of the event (settle.lua), which the
  caller does next: in between the subject has an unsettled event, so its count is not exact.

  KEYS[1..3]  head; both generations of pairs of the epoch of the event
  ARGV[1]     that epoch
  ARGV[2]     `<subject>\n<user>`
  ARGV[3]     n of the event
  ARGV[4]     whether the ledger's row says liked: 1 or 0

  Returns how many pairs were changed, as text; or a number: the epoch in force, which is not that of the event, 0 if there is none. In
  another epoch nothing rests on the event.
]]
-- @include _generations

local call = redis.call
local field, n, liked = ARGV[2], ARGV[3], ARGV[4]
if #ARGV ~= 4 or not string.find(n, '^%d+$') or (liked ~= '0' and liked ~= '1') then error('give-up: arguments are missing') end

local head = call('HMGET', KEYS[1], 'epoch', 'server', 'gen', 'told')
if not head[2] then return 0 end
if head[1] ~= ARGV[1] then return tonumber(head[1]) end

local young, old = generations(tonumber(head[3]), KEYS[2], KEYS[3])
local record = call('HGET', young, field) or call('HGET', old, field)
-- A pair that was decided again is settled by its newer event.
if not record or string.sub(record, 2) ~= n then return '0' end
if tonumber(head[4]) >= tonumber(n) - 1 then call('HSET', young, field, liked)
else
  call('HDEL', young, field)
  call('HDEL', old, field)
end
return '1'
