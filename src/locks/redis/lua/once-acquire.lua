--[[
  Takes the right to run a `once`, joins those who wait for its result, or gives the result. Like mutex-serve.lua, with a
  result before it.

  KEYS[1..2]     clock, gone (see _frame.lua)
  KEYS[3i..]     for request i: lock, queue, result
  ARGV[1..3]     channel, publish, grace (see _frame.lua)
  ARGV[4i..]     for request i: rid, lease ms, place ('' do not queue, 0 a new one, else the ticket it had), info

  Returns {TIME in microseconds, reply of request 1, …}; a reply is
    token                    granted: run it
    {0, retry ms, ticket, 1 if it had lost its place}
                             in the queue; the present lease ends after `retry ms`
    {-1, retry ms}           somebody runs it, not queued
    {-2}                     this request was given up before
    {-3, result}             it has been run
]]
-- @include _frame
-- @include _mutex
-- @include _mutex-take

local function run(lock, queue, resultKey, a)
  local result = redis.call('GET', resultKey)
  return result and {-3, string.match(result, '^%S+ (.*)$')} or take(lock, queue, a)
end

local replies = {nowUs()}
for i = 1, (#KEYS - 2) / 3 do
  replies[i + 1] = guarded(run, KEYS[3 * i], KEYS[3 * i + 1], KEYS[3 * i + 2], 4 * i)
end
keepMinted()
return replies
