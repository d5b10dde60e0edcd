-- The seckill script of docs/concepts/sources.md, 003, in its RabbitMQ version: the order goes to the broker instead of a stream.
-- ARGV: voucher id, user id
local stockKey, orderKey = 'seckill:stock:' .. ARGV[1], 'seckill:order:' .. ARGV[1]
if tonumber(redis.call('GET', stockKey)) <= 0 then return 1 end
if redis.call('SISMEMBER', orderKey, ARGV[2]) == 1 then return 2 end
redis.call('INCRBY', stockKey, -1)
redis.call('SADD', orderKey, ARGV[2])
return 0
