--[[
  Deletes what an epoch that is over has left, some subjects at a time; not its stream, which the pipe empties.

  KEYS[1..6]  head, old epochs; subjects, both generations of pairs, told ahead of the old epoch
  ARGV[1]     the old epoch
  ARGV[2]     the prefix of the names of its filters
  ARGV[3]     about how many subjects to delete

  Returns how many things were deleted; 0: nothing is left of it, or it is in force.
]]
local inForce = tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0)
if inForce <= tonumber(ARGV[1]) then return 0 end
local scanned = redis.call('HSCAN', KEYS[3], 0, 'COUNT', ARGV[3])[2]
local names, filters = {}, {}
for i = 1, #scanned, 2 do
  names[#names + 1] = scanned[i]
  filters[#filters + 1] = ARGV[2] .. scanned[i]
end
if #names > 0 then
  redis.call('UNLINK', unpack(filters))
  redis.call('HDEL', KEYS[3], unpack(names))
  return #names
end
return redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6]) + redis.call('SREM', KEYS[2], ARGV[1])
