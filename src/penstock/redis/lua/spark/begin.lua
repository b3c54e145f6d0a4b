-- Notes what a task of a pipeline begins, and what it is done with: what is left belongs to processes that died.
-- KEYS: 1 hash: what the tasks of a batch have begun, and how often
-- ARGV: 1 TTL of the hash in s, 2... name, count, ... (0 = done)
-- Returns: all names and counts as they were before.
-- Called twice: notes the same again, and returns what the first call noted.
local call = redis.call
local before = call('HGETALL', KEYS[1])
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '0' then
    call('HDEL', KEYS[1], ARGV[i])
  else
    call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
call('EXPIRE', KEYS[1], ARGV[1])
return before
