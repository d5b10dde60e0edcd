--[[
  Raises the token of a held mutex, and what this bucket mints next, to at least `token`. A quorum takes the largest token
  of its masters and tells it to all of them, so that the next majority, which shares a master with this one, mints more.

  KEYS[1..2]  clock, gone (see _frame.lua)
  KEYS[3]     lock
  ARGV[1..3]  channel, publish, grace (see _frame.lua)
  ARGV[4]     rid
  ARGV[5]     token

  Returns
    1  raised
    0  not ours any more
]]
local rid, token, rest = string.match(redis.call('GET', KEYS[3]) or '', '^(%S+) (%d+)( .*)$')
if rid ~= ARGV[4] then return 0 end
local wanted = tonumber(ARGV[5])
if tonumber(token) < wanted then redis.call('SET', KEYS[3], rid .. ' ' .. ARGV[5] .. rest, 'KEEPTTL') end
if tonumber(redis.call('GET', KEYS[1]) or '0') < wanted then redis.call('SET', KEYS[1], ARGV[5]) end
return 1
