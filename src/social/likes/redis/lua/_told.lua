--[[
  Included by the commands that must know which events Redis was told of. Not a command of its own.

  Told are all events up to the number `told` of the head, and those in the ranges of a sorted set, each of which is its first number with
  its last as the score. Workers tell mostly in order, so that the set is nearly always empty. An event that nobody can store leaves a gap.
  Here a list of ranges is flat: first, last, first, last, and so on.
]]
local SOME = 64

-- The ranges of told events that overlap `from` to `to` or lie next to it, in order, after the one up to `told`.
local function toldRanges(ahead, told, from, to)
  local ranges, least = { 1, told }, from - 1
  repeat
    local found = redis.call('ZRANGEBYSCORE', ahead, least, '+inf', 'WITHSCORES', 'LIMIT', 0, SOME)
    for i = 1, #found, 2 do
      local first, last = tonumber(found[i]), tonumber(found[i + 1])
      if first > to + 1 then return ranges end
      ranges[#ranges + 1], ranges[#ranges + 2] = first, last
      least = last + 1
    end
  until #found < 2 * SOME
  return ranges
end

-- How many numbers from `from` to `to` are not in these ranges.
local function untoldIn(ranges, from, to)
  local count = to - from + 1
  for i = 1, #ranges, 2 do
    local both = math.min(to, ranges[i + 1]) - math.max(from, ranges[i]) + 1
    if both > 0 then count = count - both end
  end
  return count
end

-- Adds ranges to those of `toldRanges`; returns the new `told`.
local function addTold(ahead, ranges, spans)
  local all = {}
  for i = 1, #ranges, 2 do all[#all + 1] = { ranges[i], ranges[i + 1] } end
  for i = 1, #spans, 2 do all[#all + 1] = { spans[i], spans[i + 1] } end
  table.sort(all, function(one, other) return one[1] < other[1] end)
  local merged = { all[1] }
  for i = 2, #all do
    local last = merged[#merged]
    if all[i][1] <= last[2] + 1 then last[2] = math.max(last[2], all[i][2])
    else merged[#merged + 1] = all[i] end
  end
  for i = 3, #ranges, 2 do redis.call('ZREM', ahead, ranges[i]) end
  for i = 2, #merged do redis.call('ZADD', ahead, merged[i][2], merged[i][1]) end
  return merged[1][2]
end
