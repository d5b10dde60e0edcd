--[[
  Takes a mutex (also fair), or joins its queue. Idempotent by request id: sent again it gives the same grant, or the same
  place in the queue. Also the way a waiter looks after a silent queue: a lock whose lease is over goes to the first
  waiter that lives.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[2i+1..]   for request i: lock, queue
  ARGV[1..2]     channel, publish (see _frame.lua)
  ARGV[6i-3..]   for request i: rid, lease ms, 1 to queue, ticket (0: a new place), hand-over ms, info

  Returns {TIME in microseconds, reply of request 1, …}; a reply is
    token                    granted
    {0, retry ms, ticket}    in the queue; the present lease ends after `retry ms`
    {-1, retry ms}           held, not queued
    {-2}                     this request was given up before
]]
-- @include _frame
-- @include _mutex
-- @include _mutex-take

local replies = {nowUs()}
for i = 1, (#KEYS - 2) / 2 do replies[i + 1] = take(KEYS[2 * i + 1], KEYS[2 * i + 2], 6 * i - 3) end
keepMinted()
return replies
