-- Deletes a group and all that is kept for it in one step: a consumer that finds the group gone creates it again.
-- KEYS: 1 stream, 2 position, 3 retries, 4 attempts
-- ARGV: 1 group
-- Returns: how many keys of it were there
-- Called twice: the second call finds nothing.
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1]) end
return redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
