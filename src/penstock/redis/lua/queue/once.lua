-- Runs one command on one key, once, however often it is sent.
-- KEYS: 1 key, 2 operation
-- ARGV: 1 TTL of the operation in s, 2 command, 3.. what follows the key in it
-- Returns: the answer of the command, a number or a text, as a text.
-- Called twice: the second call gets the recorded answer and runs nothing.
-- The command first: one that is allowed at the memory limit takes the record along.
local done = redis.call('GET', KEYS[2])
if done then return done end
local answer = tostring(redis.call(ARGV[2], KEYS[1], unpack(ARGV, 3)))
redis.call('SET', KEYS[2], answer, 'EX', ARGV[1])
return answer
