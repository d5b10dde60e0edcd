--[[
  Included by the commands of mutex, fair and once. Not a command of its own.

  A lock is two keys:
    lock   string `<rid> <token> <since ms> <info>`, expiring at the end of the lease; absent when free
    queue  sorted set of waiting request ids by ticket; absent when nobody waits
]]
local function ownerOf(value)
  return value and string.match(value, '^(%S+)')
end

local function tokenOf(value)
  return tonumber(string.match(value, '^%S+ (%d+)'))
end

local function hold(lock, rid, leaseMs, info)
  local token = mint()
  redis.call('SET', lock, rid .. ' ' .. digits(token) .. ' ' .. digits(nowMs()) .. ' ' .. info, 'PX', leaseMs)
  return token
end

--[[
  The lock is nobody's now: gives it to the first in the queue that still lives and tells only that one; `asker` is not
  told, it reads its grant from the reply. It has `graceMs` to confirm. Returns whose it is, or nil (and the lock's key
  is gone). A request of the client that gave it back, `giver`, is not told either: then its token is returned as well.
]]
local function handOver(lock, queue, asker, giver)
  while true do
    local head = redis.call('ZPOPMIN', queue)[1]
    if not head then
      redis.call('DEL', lock)
      return nil
    end
    if head == asker then return head end
    -- The token is used up even if nobody listens: numbers are cheap, and a grant must never be told before it is made.
    local token = hold(lock, head, graceMs, '')
    if giver and string.match(giver, '^[^.]+') == string.match(head, '^[^.]+') then return head, token end
    if wake(head, grantMessage(head, token)) then return head end
  end
end
