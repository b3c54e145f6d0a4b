-- Makes pending messages due at once, for whichever consumer comes next: pending -> waiting. A consumer that still works on
-- one loses it: what it says about it later is refused.
-- KEYS: 1 stream, 2 retries
-- ARGV: 1 group, 2 ms for which their holders must have been silent, 3.. ids
-- Returns: {ids that are due now}
-- Called twice: those that nobody has taken meanwhile are due still.
-- include: shared/now.lua
local due, found = string.format('%.0f', now_ms), {}
for i = 3, #ARGV do
  local entry = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if entry and entry[3] >= tonumber(ARGV[2]) then
    redis.call('ZADD', KEYS[2], due, ARGV[i])
    found[#found + 1] = ARGV[i]
  end
end
return found
