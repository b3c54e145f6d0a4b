-- Moves values of a list of redis-message-queue into a stream of records: a dead letter, a line of a log.
-- KEYS: 1 list, 2 stream, 3.. for dead letters: deduplication key of each, which is free again
-- ARGV: 1 how far from its end the list is searched, 2 value of deduplication keys whose entry is not known,
--       then per value: value, number of field arguments, field, value, ...
-- Returns: how many were moved; the others were not in the list any more.
-- Called twice: the second call finds the values gone from the list and adds nothing.
-- XADD before LREM: when the stream refuses, the value stays where it is.
-- include: shared/entry_of.lua
local moved, i, key = 0, 3, 3
while i <= #ARGV do
  local value, size = ARGV[i], ARGV[i + 1]
  if redis.call('LPOS', KEYS[1], value, 'RANK', -1, 'MAXLEN', ARGV[1]) then
    local published = KEYS[key] and entry_of(KEYS[key])
    redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 2, i + 1 + size))
    redis.call('LREM', KEYS[1], -1, value)
    if published == ARGV[2] then redis.call('DEL', KEYS[key]) end
    moved = moved + 1
  end
  key = key + 1
  i = i + 2 + size
end
return moved
