-- Adds a data stream to the load balancer stream, once for each producer's request.
-- KEYS: 1 load balancer stream, 2 request (a marker of this one call)
-- ARGV: 1 ms for which the call may be repeated, 2 field, 3 value
-- Returns: entry id
-- Called twice: with the same marker it returns the same id and adds nothing.
local id = redis.call('GET', KEYS[2])
if id then return id end
id = redis.call('XADD', KEYS[1], '*', ARGV[2], ARGV[3])
redis.call('SET', KEYS[2], id, 'PX', ARGV[1])
return id
