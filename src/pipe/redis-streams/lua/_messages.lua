-- How many messages are in these entries. A field that contains messages is named by a letter of its kind and their number: `o` and `k`
-- for orders, `l` for likes.
local function messagesIn(entries)
  local count = 0
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    for i = 1, #fields, 2 do
      local messages = string.match(fields[i], '^[okl](%d+)$')
      if messages then count = count + messages end
    end
  end
  return count
end
