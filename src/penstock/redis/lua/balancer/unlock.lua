-- Releases the lock of one data stream, where it is in another slot than the load balancer stream.
-- KEYS: 1 lock
-- ARGV: 1 consumer, 2 the name under which it expires, which notifies the peers; '' = it is deleted
-- Returns: 1 = done, 0 = nobody held it, -1 = another consumer holds it
-- Called twice: finds nothing.
-- include: shared/run_out.lua
local holder = redis.call('GET', KEYS[1])
if not holder then return 0 end
if holder ~= ARGV[1] then return -1 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else run_out(KEYS[1], ARGV[2]) end
return 1
