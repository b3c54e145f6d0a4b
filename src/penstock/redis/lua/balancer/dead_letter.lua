-- Moves an entry that names no data stream, or that was handed out too often, to the dead letters: pending -> dead.
-- KEYS: 1 load balancer stream, 2 dead letters, 3 owners
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 ms for which its holder must have been silent, if that is another consumer,
--       5 data stream ('' = it names none), 6.. fields and values of the record
-- Returns: 1 = dead-lettered, 0 = not pending, -1 = another consumer holds it
-- Called twice: the second call finds nothing pending and writes nothing.
-- XADD before XACK: when the record cannot be written (memory, type, rights) the entry stays pending.
local stream, group, id = KEYS[1], ARGV[1], ARGV[3]
local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not entry then return 0 end
if entry[2] ~= ARGV[2] and entry[3] < tonumber(ARGV[4]) then return -1 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 6))
redis.call('XACK', stream, group, id)
redis.call('XDEL', stream, id)
if ARGV[5] ~= '' and redis.call('HGET', KEYS[3], ARGV[5]) == id then redis.call('HDEL', KEYS[3], ARGV[5]) end
return 1
