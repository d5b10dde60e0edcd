--[[
  Makes the group that reads a stream, from the stream's beginning. Not for a stream that is not to be: one that was drained
  and removed must not come back because somebody heard of it late.

  KEYS[1]  stream
  KEYS[2]  epochs
  ARGV[1]  the stream's epoch
  ARGV[2]  the group

  Returns 1, or 0: there is no such stream.
]]
local stream = KEYS[1]
if redis.call('EXISTS', stream) == 0 and redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 0 then return 0 end
local made = redis.pcall('XGROUP', 'CREATE', stream, ARGV[2], '0', 'MKSTREAM')
-- Another was quicker.
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
return 1
