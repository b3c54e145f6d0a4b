-- Moves deduplication keys of redis-message-queue whose messages are not known: what is left of their time goes on here.
-- KEYS: old key, new key, old key, new key, ...
-- ARGV: 1 value of the new keys
-- Returns: how many were moved; a key that exists here already stays as it is.
-- Called twice: the second call finds the old keys gone.
local moved = 0
for i = 1, #KEYS, 2 do
  local left_ms = redis.call('PTTL', KEYS[i])
  if left_ms ~= -2 then
    if left_ms == -1 then
      redis.call('SET', KEYS[i + 1], ARGV[1], 'NX')
    else
      redis.call('SET', KEYS[i + 1], ARGV[1], 'PX', math.max(1, left_ms), 'NX')
    end
    redis.call('DEL', KEYS[i])
    moved = moved + 1
  end
end
return moved
