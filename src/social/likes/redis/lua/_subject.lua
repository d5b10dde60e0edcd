--[[
  Included by the commands that read or change subjects. Not a command of its own.

  A subject is one value, packed: as text its numbers would take Lua longer than everything else that is done with them.
    count rev at     what the ledger has committed and Redis was told of, the number of that change, and when it was committed
    delta            the sum of the events that Redis was not told of: 1 for a like, -1 for one that is taken back
    unsettled        how many these are
    gen              the generation of records (_generations.lua) that was young when the subject was last decided on or told of
    checked claimed  when the ledger was last known to have this subject; when a caller was last asked to check that. 0: unknown
    used             when it was last decided on, to the second
    filled buckets   users in its filter, and buckets of it
    state            of its filter: c complete, i incomplete, f<token> being filled, x given up
    first            the users of a filter with one bucket (_filter.lua)

  A pair's record is `1` or `0`, liked or not, and the number of the last decision directly behind. Without a number it is a row of the
  ledger that was read and needed no change.
]]
local SUBJECT = '<I4I6I6i4I4I4I6I6I6I4I4Bc0'

local function readSubject(name, text)
  local count, rev, at, delta, unsettled, gen, checked, claimed, used, filled, buckets, state, rest = struct.unpack(SUBJECT, text)
  return {
    name = name,
    count = count,
    rev = rev,
    at = at,
    delta = delta,
    unsettled = unsettled,
    gen = gen,
    checked = checked,
    claimed = claimed,
    used = used,
    filled = filled,
    buckets = buckets,
    state = state,
    first = string.sub(text, rest),
  }
end

local function writtenSubject(of)
  return struct.pack(SUBJECT, of.count, of.rev, of.at, of.delta, of.unsettled, of.gen, of.checked, of.claimed, of.used, of.filled,
    of.buckets, #of.state, of.state) .. of.first
end

-- While tells overtake each other, the sum may be below what the rows have.
local function shownCount(of) return math.max(of.count + of.delta, 0) end

-- Redis' own clock, in milliseconds.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
