-- Included by the commands that act on the epoch in force: KEYS[1] is the gate, ARGV[1] the epoch that the caller believes
-- in force, and the other keys are of that epoch. If it is not, the caller is told which one is; 0: there is none.
local inForce = redis.call('HGET', KEYS[1], 'epoch')
if inForce ~= ARGV[1] then return tonumber(inForce or 0) end
