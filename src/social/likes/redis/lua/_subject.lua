--[[
  Included by the commands that read or change subjects. Not a command of its own.

  A subject is one value, with blanks between:
    count rev at     what the ledger has committed and Redis was told of, the number of that change, and when it was committed
    delta            the sum over its pairs of what is decided minus what `count` includes
    unsettled        pairs with a decision that Redis was not told is committed
    kept             pairs that have a record
    checked claimed  when the ledger was last known to have this subject; when a caller was last asked to check that. 0: unknown
    used             when it was last decided on, to the second
    state            of its filter: c complete, i incomplete, f<token> being filled, x given up
    filled buckets   users in its filter, and buckets of it

  A pair is one value, too: `<liked> <liked in count> <n> <n in count> <settled>`. n is the number of the last decision since the record
  was made, 0 if there was none; what has a number up to `n in count` is in the subject's count; settled is when Redis was told that all
  of it is committed, 0 if that is still to come.
]]
local SUBJECT = '^(%-?%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%w+) (%d+) (%d+)$'

local function readSubject(name, text)
  local count, rev, at, delta, unsettled, kept, checked, claimed, used, state, filled, buckets = string.match(text, SUBJECT)
  return {
    name = name,
    count = tonumber(count),
    rev = tonumber(rev),
    at = tonumber(at),
    delta = tonumber(delta),
    unsettled = tonumber(unsettled),
    kept = tonumber(kept),
    checked = tonumber(checked),
    claimed = tonumber(claimed),
    used = tonumber(used),
    state = state,
    filled = tonumber(filled),
    buckets = tonumber(buckets),
  }
end

local function writtenSubject(of)
  return table.concat({ of.count, of.rev, of.at, of.delta, of.unsettled, of.kept, of.checked, of.claimed, of.used, of.state, of.filled,
    of.buckets }, ' ')
end

local function readPair(text)
  local liked, base, n, baseN, settled = string.match(text, '^(%d) (%d) (%d+) (%d+) (%d+)$')
  return { liked = tonumber(liked), base = tonumber(base), n = tonumber(n), baseN = tonumber(baseN), settled = tonumber(settled) }
end

local function writtenPair(of)
  return of.liked .. ' ' .. of.base .. ' ' .. of.n .. ' ' .. of.baseN .. ' ' .. of.settled
end

-- Redis' own clock, in milliseconds.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
