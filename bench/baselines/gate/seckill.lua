-- The seckill script of docs/concepts/sources.md, 003, as it is taught: one call, one order.
-- ARGV: voucher id, user id, order id
local stockKey, orderKey = 'seckill:stock:' .. ARGV[1], 'seckill:order:' .. ARGV[1]
if tonumber(redis.call('GET', stockKey)) <= 0 then return 1 end
if redis.call('SISMEMBER', orderKey, ARGV[2]) == 1 then return 2 end
redis.call('INCRBY', stockKey, -1)
redis.call('SADD', orderKey, ARGV[2])
redis.call('XADD', 'stream.orders', '*', 'userId', ARGV[2], 'voucherId', ARGV[1], 'id', ARGV[3])
return 0
