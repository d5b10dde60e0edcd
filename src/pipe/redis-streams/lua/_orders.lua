-- How many orders are in these entries: fields of orders are called `o` or `k`, and how many they hold.
local function ordersIn(entries)
  local count = 0
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    for i = 1, #fields, 2 do
      local orders = string.match(fields[i], '^[ok](%d+)$')
      if orders then count = count + orders end
    end
  end
  return count
end
