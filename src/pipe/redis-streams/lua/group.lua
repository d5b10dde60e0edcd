--[[
  Creates the group of a stream, from the stream's beginning, unless the stream was removed: a late wake-up must not bring a drained
  stream back.

  KEYS[1]  stream
  KEYS[2]  epochs
  ARGV[1]  the stream's epoch
  ARGV[2]  the group

  Returns 1, or 0: there is no such stream.
]]
local stream = KEYS[1]
if redis.call('EXISTS', stream) == 0 and redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 0 then return 0 end
local made = redis.pcall('XGROUP', 'CREATE', stream, ARGV[2], '0', 'MKSTREAM')
-- Another process was faster.
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
return 1
