--[[
  What a buyer's key is bound to.

  KEYS[1..2]  gate, keys
  ARGV[1]     the epoch that the caller believes in force
  ARGV[2]     `<buyer>\n<key>`

  Returns `<order id> <bound at> <fingerprint>`, or nil: it is bound to nothing; or a number: the epoch in force, which is not the
  caller's, 0 if there is none.
]]

-- @include _epoch

return redis.call('HGET', KEYS[2], ARGV[2])
