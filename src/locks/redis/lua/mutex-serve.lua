--[[
  Takes mutexes (also fair) and gives them back. One command for both, since they come together: a process in which
  several wait answers each grant with a release of one and, often, a new request of the one before.

  To take: takes it if it is free, or joins its queue. Idempotent by request id: sent again it gives the same grant, or the
  same place in the queue. Also the way a waiter looks after a silent queue: a lock whose lease is over goes to the first
  waiter that lives.
  To give back: gives it back, or leaves its queue. Handed to the next waiter that lives in the same step.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[2i+1..]   for request i: lock, queue
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[4i..]     for request i, to take: rid, lease ms, place ('' do not queue, 0 a new one, else the ticket it had), info;
                 to give back: rid, '-' (or '!' to remember the id as gone), '', ''

  Returns {TIME in microseconds (0: not asked for), reply of request 1, …}, or, for one request that is answered by a
  number, that number alone. A reply to taking is
    token                    granted
    {0, retry ms, ticket, 1 if it had lost its place}
                             in the queue; the present lease ends after `retry ms`
    {-1, retry ms}           held, not queued
    {-2}                     this request was given up before
  and one to giving back
    1  released, nobody waits
    2  released and handed to somebody who has yet to confirm
    3  left the queue
    0  neither held nor queued
    4  not held, and somebody else was let in who has yet to confirm
    {token, rid}  released, and that request of the same client has it
]]

-- What happens nearly always, before anything else is even defined (defining it costs as much as doing it): one request to
-- take or to give back, or one of each for the same lock. Everything else goes the long way below.
local takes, gives
if #KEYS == 4 then
  if ARGV[5] == '-' then gives = 4 elseif ARGV[5] ~= '!' then takes = 4 end
elseif #KEYS == 6 and KEYS[3] == KEYS[5] then
  if ARGV[5] == '-' and ARGV[10] == '0' then
    gives, takes = 4, 8
  elseif ARGV[9] == '-' and ARGV[6] == '0' then
    takes, gives = 4, 8
  end
end

if takes or gives then
  local clock, gone, lock, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local rid = takes and ARGV[takes]
  local now, since

  -- Two numbers in a row, as text: the second is used only if `both`. Also sets the time: in microseconds, and as a hold
  -- shows it.
  local function mint(both)
    local time = redis.call('TIME')
    local fraction = time[2]
    if #fraction < 6 then fraction = string.sub('00000' .. fraction, -6) end
    now = time[1] .. fraction
    since = time[1] .. string.sub(fraction, 1, 3)
    -- Numbers of sixteen digits all: compared as text they compare as numbers.
    local first, second = now, both and string.format('%.0f', now + 1)
    local last = redis.call('SET', clock, second or first, 'GET')
    if last and last >= now then
      first, second = string.format('%.0f', last + 1), string.format('%.0f', last + 2)
      redis.call('SET', clock, both and second or first)
    end
    return first, second
  end

  local function hold(holder, token, ms, info)
    redis.call('SET', lock, holder .. ' ' .. token .. ' ' .. since .. ' ' .. info, 'PX', ms)
    return tonumber(token)
  end

  -- See QUEUE_MS in _frame.lua.
  local function enqueue(ticket)
    if redis.call('ZADD', queue, 'NX', ticket, rid) == 0 then ticket = redis.call('ZSCORE', queue, rid) end
    redis.call('PEXPIRE', queue, 60000)
    return tonumber(ticket)
  end

  if not gives then
    local known = redis.call('EXISTS', gone, lock, queue)
    local value = known > 0 and redis.call('GET', lock)
    local free = known == 0 or (known == 1 and not value and redis.call('EXISTS', queue) == 0)
    local others = value and ARGV[6] == '0' and string.find(value, rid .. ' ', 1, true) ~= 1
    if known == 0 or ((free or others) and not redis.call('ZSCORE', gone, rid)) then
      local number = mint()
      if free then return hold(rid, number, ARGV[5], ARGV[7]) end
      local ticket = enqueue(number)
      return {tonumber(now), {0, redis.call('PTTL', lock), ticket}}
    end
  else
    local giver = ARGV[gives]
    local value = redis.call('GET', lock)
    local owned = value and string.find(value, giver .. ' ', 1, true) == 1
    if owned and not (takes and redis.call('ZSCORE', gone, rid)) then
      local head = redis.call('ZPOPMIN', queue)[1]
      if not head and not takes then
        redis.call('DEL', lock)
        return 1
      end
      local token, ticket = mint(takes)
      local given, taken
      -- Nobody but the one who asks: handed to it if it asked first, else it finds it free.
      if not head and takes < gives then head, taken = rid, {0, tonumber(ARGV[3]), tonumber(ticket)} end
      if not head or (head == rid and not taken) then
        given, taken = 1, hold(rid, token, ARGV[takes + 1], ARGV[takes + 3])
      else
        local client = string.match(head, '^[^.]+')
        -- Not by what PUBLISH returns: that counts those who listen to every channel, too.
        if string.find(giver, client .. '.', 1, true) == 1 then
          given = {hold(head, token, ARGV[3], ''), head}
        elseif ARGV[2] == 'SPUBLISH' or redis.call('PUBSUB', 'NUMSUB', ARGV[1] .. client)[2] > 0 then
          hold(head, token, ARGV[3], '')
          local message = 'granted ' .. head .. ' ' .. token .. ' ' .. now
          if redis.call(ARGV[2], ARGV[1] .. client, message) > 0 then given = 2 else hold(giver, '0', ARGV[3], '') end
        end
        if given and takes and not taken then taken = {0, tonumber(ARGV[3]), enqueue(ticket)} end
      end
      if given then
        if taken then return gives < takes and {tonumber(now), given, taken} or {tonumber(now), taken, given} end
        return type(given) == 'table' and {tonumber(now), given} or given
      end
      -- Nobody listens there: the lock is still the giver's, and the next in the queue is looked for below.
    end
  end
end

-- @include _frame
-- @include _mutex
-- @include _mutex-take

local function giveBack(lock, queue, a)
  local rid = ARGV[a]
  local owner = ownerOf(redis.call('GET', lock))
  local reply
  if owner == rid then
    -- A copy of its acquire may have come after it was given to it.
    if ARGV[a + 1] == '!' then redis.call('ZREM', queue, rid) end
    if redis.call('EXISTS', queue) == 0 then
      redis.call('DEL', lock)
      reply = 1
    else
      local head, token = handOver(lock, queue, nil, rid)
      reply = token and {token, head} or (head and 2 or 1)
    end
  else
    reply = redis.call('ZREM', queue, rid) == 1 and 3 or 0
    -- Its lease had run out, or that of another: whoever comes by sees to the queue.
    if not owner and redis.call('EXISTS', queue) == 1 and handOver(lock, queue) then reply = 4 end
  end
  if ARGV[a + 1] == '!' then rememberGone(rid) end
  return reply
end

local replies = {nowUs()}
for i = 1, (#KEYS - 2) / 2 do
  local serve = (ARGV[4 * i + 1] == '-' or ARGV[4 * i + 1] == '!') and giveBack or take
  replies[i + 1] = guarded(serve, KEYS[2 * i + 1], KEYS[2 * i + 2], 4 * i)
end
keepMinted()
return replies
