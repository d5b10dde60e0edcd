--[[
  Begins to fill the filter of a subject with the users that the ledger has. Users that are decided on meanwhile are added by decide.lua,
  as they have been since the subject came into Redis.

  KEYS[1..2]  head; subjects of the epoch that the caller believes in force
  ARGV[1]     that epoch
  ARGV[2]     the prefix of the names of filters, as for fill.lua
  ARGV[3]     how many users may be in filters
  ARGV[4..5]  subject, token: a name that nobody else has
  ARGV[6]     how many users to expect

  Returns 'filling'; 'complete': it is already; 'none': the subject is not in Redis, or there is no room; or a number: the epoch
  in force, which is not the caller's, 0 if there is none.
]]
-- @include _subject

local expected = tonumber(ARGV[6])
if #ARGV ~= 6 or not expected or not string.find(ARGV[5], '^%w+$') then error('fill-begin: arguments are missing') end
local head = redis.call('HMGET', KEYS[1], 'epoch', 'server', 'users')
if not head[2] then return 0 end
if head[1] ~= ARGV[1] then return tonumber(head[1]) end
local text = redis.call('HGET', KEYS[2], ARGV[4])
local of = text and readSubject(ARGV[4], text)
if not of or of.state == 'x' then return 'none' end
if of.state == 'c' then return 'complete' end
if tonumber(head[3]) + expected > tonumber(ARGV[3]) then return 'none' end
of.state = 'f' .. ARGV[5]
redis.call('HSET', KEYS[2], ARGV[4], writtenSubject(of))
return 'filling'
