-- Gives a consumer's name up, unless a newer process has taken it.
-- KEYS: 1 worker
-- ARGV: 1 incarnation
-- Returns: 1 = given up, 0 = it is nobody's, or a newer process's
-- Called twice: the second call finds nothing to give up.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
