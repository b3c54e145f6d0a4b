-- Puts back a message that this consumer read for a caller who did not come: pending -> waiting, due at once.
-- KEYS: 1 stream, 2 retries, 3 attempts
-- ARGV: 1 group, 2 consumer, 3 id
-- Returns: 1 = put back, 0 = it belongs to another consumer by now, or this one has taken it up since.
-- Called twice: the second call changes nothing.
-- A call may arrive after its caller has given up waiting for the reply, when somebody processes the message: take.lua sets
-- the count of one delivery to 0, and begin.lua records an attempt.
-- XCLAIM first, and not for an entry that has vanished: see park.lua.
local stream, group, me, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local entry = redis.call('XPENDING', stream, group, id, id, 1, me)[1]
if not entry or entry[4] ~= 1 or redis.call('HGET', KEYS[3], id) then return 0 end
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
if #redis.call('XRANGE', stream, id, id) == 1 then
  redis.call('XCLAIM', stream, group, me, 0, id, 'RETRYCOUNT', 0, 'JUSTID')
end
redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms), id)
redis.call('HSET', KEYS[3], id, 0)
return 1
