-- Hands out messages whose retry is due: waiting -> pending with this consumer.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 dead letters, if missing messages are to be settled
-- ARGV: 1 group, 2 consumer, 3 how many at most; fewer if they are large
-- Returns: {ms until the next one is due or -1, {{id, count, attempts, fields}, ...}, {missing ids}}
-- Called twice: the second call hands out the next ones; what the first took is pending with this consumer.
-- include: streams/claim.lua
local out, missing = {}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', retries, '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, ARGV[3])) do
  if is_enough() then break end
  local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if entry then claim(entry, out, missing) end
  redis.call('ZREM', retries, id)
end
local following = redis.call('ZRANGE', retries, 0, 0, 'WITHSCORES')
local wait_ms = -1
if following[2] then wait_ms = math.max(0, following[2] - now_ms) end
return {wait_ms, out, missing}
