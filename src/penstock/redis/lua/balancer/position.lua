-- Opens, commits or closes the position of a data stream; an older owner is fenced off.
-- KEYS: 1 position
-- ARGV: 1 token, 2 position to commit ('' = open: only make the token known), 3 ms to keep it for ('' = for ever)
-- Returns: {position, 1} | {position, 0}: refused, a newer owner has opened it
-- Called twice: writes the same.
local token, position = unpack(redis.call('HMGET', KEYS[1], 'token', 'position'))
if token and tonumber(token) > tonumber(ARGV[1]) then return {position or '', 0} end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
if ARGV[2] ~= '' then
  position = ARGV[2]
  redis.call('HSET', KEYS[1], 'position', position)
end
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) else redis.call('PERSIST', KEYS[1]) end
return {position or '', 1}
