-- Included by scripts that import deduplication keys. move_marker(old, new, value) moves a key with the time that it has left; one that
-- exists here already stays as it is. Returns: whether there was one.
local function move_marker(old, new, value)
  local left_ms = redis.call('PTTL', old)
  if left_ms == -2 then return false end
  if left_ms == -1 then
    redis.call('SET', new, value, 'NX')
  else
    redis.call('SET', new, value, 'PX', math.max(1, left_ms), 'NX')
  end
  redis.call('DEL', old)
  return true
end
