-- Moves one message to the dead letters: pending -> dead. Its deduplication key is free again: the message did not arrive.
-- KEYS: 1 stream, 2 dead letters, 3 retries, 4 attempts, 5 worker, 6 deduplication key of the message, if it has one
-- ARGV: 1 group, 2 consumer, 3 incarnation, 4 id, 5 '1' = delete the entry unless another group needs it,
--       6.. fields and values of the record
-- Returns: id of the record, 0 = not pending (settled before), -1 = it belongs to another consumer.
-- Called twice: the second call finds nothing pending and writes nothing.
-- XADD before XACK: when the record cannot be written (memory, type, rights) the message stays pending.
local stream, worker, group, id = KEYS[1], KEYS[5], ARGV[1], ARGV[4]
-- include: streams/fence.lua
-- include: shared/discard.lua
-- include: shared/entry_of.lua
local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not entry then return 0 end
if entry[2] ~= ARGV[2] then return -1 end
local published = KEYS[6] and entry_of(KEYS[6])
local record = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 6))
redis.call('XACK', stream, group, id)
redis.call('ZREM', KEYS[3], id)
redis.call('HDEL', KEYS[4], id)
if published == id then redis.call('DEL', KEYS[6]) end
if ARGV[5] == '1' then discard(stream, id) end
return record
