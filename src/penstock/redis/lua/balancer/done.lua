-- Finishes a data stream: owned -> done. The entry is acknowledged and deleted before the lock goes.
-- KEYS: 1 load balancer stream, 2 owners, 3 lock (absent in a cluster, where it was examined before this)
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 data stream
-- Returns: 1 = done, 0 = not pending (finished before), -1 = another consumer owns it
-- Called twice: the second call finds nothing pending.
local stream, owners, group, me, id, name = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local holder = KEYS[3] and redis.call('GET', KEYS[3])
if holder and holder ~= me then return -1 end
local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
-- Under our lock it does not matter with whom a Go peer's failed claim has left the entry.
if entry and entry[2] ~= me and holder ~= me then return -1 end
if entry then
  redis.call('XACK', stream, group, id)
  redis.call('XDEL', stream, id)
end
if redis.call('HGET', owners, name) == id then redis.call('HDEL', owners, name) end
if holder then redis.call('DEL', KEYS[3]) end
return entry and 1 or 0
