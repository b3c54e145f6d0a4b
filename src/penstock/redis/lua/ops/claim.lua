-- Hands pending messages to another consumer, by an operator's decision: pending -> pending with that consumer. One whose
-- entry is gone stays with its holder: XCLAIM would drop it without a trace; its recovery writes a dead letter.
-- KEYS: 1 stream
-- ARGV: 1 group, 2 consumer, 3 ms for which their holders must have been silent, 4.. ids
-- Returns: {{ids that were handed over}, how many ids were examined: fewer than were given if their entries are large}
-- Called twice: hands them over again.
-- include: shared/pages.lua
local claimed, looked_at, bytes = {}, 0, 0
for i = 4, #ARGV do
  local id = ARGV[i]
  local entry = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  local found = entry and entry[3] >= tonumber(ARGV[3]) and redis.call('XRANGE', KEYS[1], id, id)[1]
  if found then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
    claimed[#claimed + 1] = id
    bytes = bytes + weight(found)
  end
  looked_at = looked_at + 1
  if bytes >= ENOUGH then break end
end
return {claimed, looked_at}
