-- Included by the commands that act on the epoch in force. KEYS[1] is the gate, ARGV[1] the epoch that the caller believes in
-- force; the other keys belong to that epoch. If another one is in force, returns it; 0: there is none.
local inForce = redis.call('HGET', KEYS[1], 'epoch')
if inForce ~= ARGV[1] then return tonumber(inForce or 0) end
