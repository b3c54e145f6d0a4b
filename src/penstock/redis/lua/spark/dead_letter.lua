-- Adds the dead letter of an entry that a batch of a pipeline gave up.
-- KEYS: 1 dead-letter stream, 2 set: the ids that this batch has given up
-- ARGV: 1 id of the entry, 2 TTL of the set in s, 3... field, value, ... of the record
-- Returns: the id of the dead letter, or false if there is one for this batch and entry.
-- Called twice: finds the id in the set, adds nothing.
local call = redis.call
if call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return false end
local added = call('XADD', KEYS[1], '*', unpack(ARGV, 3))
call('SADD', KEYS[2], ARGV[1])
call('EXPIRE', KEYS[2], ARGV[2])
return added
