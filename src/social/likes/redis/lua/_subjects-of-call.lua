--[[
  Included, after _subject, by the commands that change subjects by name. KEYS[2] are the subjects. Not a command of its own.
]]
local loaded = {}

-- Each subject once, with the changes that this call has made to it; nil: it is not in Redis.
local function subjectOf(name)
  local of = loaded[name]
  if of == nil then
    local text = redis.call('HGET', KEYS[2], name)
    of = text and readSubject(name, text) or false
    loaded[name] = of
  end
  return of or nil
end

local function saveSubjects()
  local fields = {}
  for name, of in pairs(loaded) do
    if of then
      fields[#fields + 1] = name
      fields[#fields + 1] = writtenSubject(of)
    end
  end
  if #fields > 0 then redis.call('HSET', KEYS[2], unpack(fields)) end
end
