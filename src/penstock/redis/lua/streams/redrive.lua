-- Puts one dead letter back into its stream: dead -> queued.
-- KEYS: 1 dead letters, 2 stream, 3 operation
-- ARGV: 1 id of the record, 2 TTL of the operation in s, 3.. fields and values of the new entry
-- Returns: id of the new entry, or 0 when the record is gone (redriven or purged before).
-- Called twice: the second call of an operation gets the recorded id; a call of another one finds the record gone.
-- The operation keeps the last of its records only: they are put back one after the other.
-- XADD before XDEL: when the stream refuses, the record stays.
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then
  local done, id = string.match(redis.call('GET', KEYS[3]) or '', '^(%S+) (%S+)$')
  return done == ARGV[1] and id or 0
end
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('SET', KEYS[3], ARGV[1] .. ' ' .. id, 'EX', ARGV[2])
return id
