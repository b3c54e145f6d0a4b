-- Puts back a message that this consumer read for a caller who did not come: pending -> waiting, due at once.
-- KEYS: 1 stream, 2 retries, 3 attempts
-- ARGV: 1 group, 2 consumer, 3 id
-- Returns: 1 = put back, 0 = it belongs to another consumer by now, or this one has taken it up since.
-- Called twice: the second call changes nothing.
-- A call may arrive after its caller has given up waiting for the reply, when somebody processes the message: take.lua sets
-- the count of one delivery to 0, and begin.lua records an attempt.
local stream, retries, attempts = KEYS[1], KEYS[2], KEYS[3]
local group, me, id = ARGV[1], ARGV[2], ARGV[3]
local entry = redis.call('XPENDING', stream, group, id, id, 1, me)[1]
if not entry or entry[4] ~= 1 or redis.call('HGET', attempts, id) then return 0 end
-- include: shared/now.lua
-- include: shared/put_aside.lua
put_aside(id, me, #redis.call('XRANGE', stream, id, id) == 1 and 0, 0, now_ms)
return 1
