-- Extends the lock of one data stream, where it is in another slot than the load balancer stream.
-- KEYS: 1 lock
-- ARGV: 1 consumer, 2 TTL in ms, 3 '1' = take it if nobody holds it
-- Returns: 1 = this consumer holds it, 0 = nobody does, -1 = another one does
-- Called twice: extends again.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return -1 end
if not holder and ARGV[3] ~= '1' then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
