-- The same script looped over a batch: its only advantage is fewer calls.
-- ARGV: voucher id, then user id and order id of each
local stockKey, orderKey = 'seckill:stock:' .. ARGV[1], 'seckill:order:' .. ARGV[1]
local replies = {}
for i = 2, #ARGV, 2 do
  local reply = 0
  if tonumber(redis.call('GET', stockKey)) <= 0 then
    reply = 1
  elseif redis.call('SISMEMBER', orderKey, ARGV[i]) == 1 then
    reply = 2
  else
    redis.call('INCRBY', stockKey, -1)
    redis.call('SADD', orderKey, ARGV[i])
    redis.call('XADD', 'stream.orders', '*', 'userId', ARGV[i], 'voucherId', ARGV[1], 'id', ARGV[i + 1])
  end
  replies[#replies + 1] = reply
end
return replies
