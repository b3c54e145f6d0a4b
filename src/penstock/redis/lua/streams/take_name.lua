-- Makes a process the one that runs under a consumer's name; an older one is fenced off from here on.
-- KEYS: 1 worker
-- ARGV: 1 incarnation, 2 TTL in ms
-- Returns: 1
-- Called twice: the same again.
-- DEL first, which is allowed at the memory limit, and the SET with it: a full server can be drained by new processes too.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
