-- Included by the commands that name an item by its id. Returns its number, or nil. Searches all items: the call is rare.
local function numberOf(items, itemId)
  local count = tonumber(redis.call('HGET', items, 'n') or 0)
  if count == 0 then return nil end
  local fields = {}
  for number = 1, count do fields[number] = 's:' .. number end
  for number, text in ipairs(redis.call('HMGET', items, unpack(fields))) do
    if text and string.find(text, itemId .. ' ', 1, true) == 1 then return number end
  end
  return nil
end
