--[[
  Best neighbours as ticket shops of the sources' kind do it: every free seat of the tier is a JSON in a hash; the script reads and
  decodes all of them, sorts them, looks for neighbours, and moves those it finds to the hash of locked seats.

  KEYS[1..2]  free seats, locked seats
  ARGV[1]     how many

  Returns the ids of the seats, or nothing.
]]
local wanted = tonumber(ARGV[1])
local seats = {}
for i, json in ipairs(redis.call('HVALS', KEYS[1])) do seats[i] = cjson.decode(json) end
table.sort(seats, function(a, b)
  if a.rowCode ~= b.rowCode then return a.rowCode < b.rowCode end
  return a.colCode < b.colCode
end)
local from = 1
for i = 1, #seats do
  if i > from and (seats[i].rowCode ~= seats[i - 1].rowCode or seats[i].colCode ~= seats[i - 1].colCode + 1) then from = i end
  if i - from + 1 == wanted then
    local ids = {}
    for j = from, i do
      ids[#ids + 1] = seats[j].id
      seats[j].sellStatus = 2
      redis.call('HDEL', KEYS[1], seats[j].id)
      redis.call('HSET', KEYS[2], seats[j].id, cjson.encode(seats[j]))
    end
    return ids
  end
end
return {}
