-- How many orders are in these entries: fields that are neither the header, nor an item, nor the number of tries.
local function ordersIn(entries)
  local count = 0
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    for i = 1, #fields, 2 do
      local byte = string.byte(fields[i])
      if byte and byte >= 48 and byte <= 57 then count = count + 1 end
    end
  end
  return count
end
