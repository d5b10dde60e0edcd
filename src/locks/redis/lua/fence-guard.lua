--[[
  Put before a script of the caller's own by fencing.ts, which then runs only for the present holder of a lock. Takes its
  own key and arguments away, so that the script behind it sees the KEYS and ARGV it was given.

  KEYS[last]      fence    the largest token seen
  ARGV[last - 1]  token    decimal digits
  ARGV[last]      keep ms  how long the fence is remembered after this; '' for ever

  Returns the error STALEFENCE <largest token> when a larger token was seen; nothing has been written then.
]]
do
  local fence, keepMs, token = table.remove(KEYS), table.remove(ARGV), table.remove(ARGV)
  local seen = redis.call('GET', fence) or ''
  -- As text, shorter is smaller: Lua's numbers would round a token of more than 53 bits.
  if #token < #seen or (#token == #seen and token < seen) then
    return redis.error_reply('STALEFENCE ' .. seen)
  end
  if keepMs ~= '' then
    redis.call('SET', fence, token, 'PX', keepMs)
  elseif token ~= seen or redis.call('TTL', fence) ~= -1 then
    redis.call('SET', fence, token)
  end
end
