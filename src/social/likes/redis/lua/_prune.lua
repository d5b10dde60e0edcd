--[[
  Included by the commands that delete old records of pairs. Not a command of its own.

  Deletes up to `max` records that were settled at least `keepMs` ago. They stay that long because a caller may have read the row of
  such a pair before it was settled (decide.lua takes rows that are half as old). `subjectOf` gives a subject of this call by name.
  Returns how many were deleted, and whether there may be more.
]]
local function prune(settled, pairKey, nowMs, keepMs, max, subjectOf)
  local fields = {}
  local lines = redis.call('LRANGE', settled, 0, max - 1)
  for _, line in ipairs(lines) do
    local atMs, field = string.match(line, '^(%d+) (.*)$')
    if tonumber(atMs) > nowMs - keepMs then break end
    fields[#fields + 1] = field
  end
  if #fields == 0 then return 0, false end
  redis.call('LTRIM', settled, #fields, -1)
  local old = {}
  for i, text in ipairs(redis.call('HMGET', pairKey, unpack(fields))) do
    local pair = text and readPair(text)
    -- One that was decided again since has another line further back, or will get it.
    if pair and pair.settled > 0 and pair.settled <= nowMs - keepMs then old[#old + 1] = fields[i] end
  end
  local deleted = 0
  for _, field in ipairs(old) do
    -- The same pair may have had two lines.
    if redis.call('HDEL', pairKey, field) == 1 then
      local of = subjectOf(string.match(field, '^[^\n]+'))
      if of then of.kept = of.kept - 1 end
      deleted = deleted + 1
    end
  end
  return #fields, #fields == max
end
