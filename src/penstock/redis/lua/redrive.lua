-- Puts one dead letter back into its stream: dead -> queued.
-- KEYS: 1 dead letters, 2 stream
-- ARGV: 1 id of the record, 2.. fields and values of the new entry
-- Returns: id of the new entry, or 0 when the record is gone (redriven or purged before).
-- Called twice: the second call finds the record gone and adds nothing.
-- XADD before XDEL: when the stream refuses, the record stays.
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
local id = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
redis.call('XDEL', KEYS[1], ARGV[1])
return id
