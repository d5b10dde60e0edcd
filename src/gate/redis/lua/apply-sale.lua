--[[
  The sale's own values; those of an older version change nothing.

  KEYS[1]     gate
  ARGV[1]     version
  ARGV[2..7]  opens, closes, paused, closed, perBuyer, payWithin
]]
local version = redis.call('HGET', KEYS[1], 'version')
if not version then return 'none' end
if tonumber(ARGV[1]) <= tonumber(version) then return 'old' end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'opens', ARGV[2], 'closes', ARGV[3], 'paused', ARGV[4],
  'closed', ARGV[5], 'perBuyer', ARGV[6], 'payWithin', ARGV[7])
return 'applied'
