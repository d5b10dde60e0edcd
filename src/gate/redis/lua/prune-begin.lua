--[[
  What a pass over the keys of a sale begins with: how old they are is judged by this server's clock, which bound them, and
  not by that of the process that asks.

  KEYS[1]  gate

  Returns the epoch in force and the time in milliseconds, as text; nothing if there is no gate.
]]
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch then return nil end
local time = redis.call('TIME')
return { epoch, string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)) }
