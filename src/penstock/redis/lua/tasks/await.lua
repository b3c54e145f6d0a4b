-- Returns the result of a task, or records that a caller waits for it.
-- KEYS: 1 results, 2 done, 3 awaited
-- ARGV: 1 id of the task, 2 for how many ms it will be waited for (0 = not at all)
-- Returns: the result, or false
-- Called twice: the same again.
-- include: tasks/stored_result.lua
local call = redis.call
local entry = call('HGET', KEYS[2], ARGV[1])
if entry then
  local _, body = stored_result(KEYS[1], entry, ARGV[1])
  if body then return body end
end
local wait_ms = tonumber(ARGV[2])
if wait_ms <= 0 then return false end
-- include: shared/now.lua
call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now_ms)) -- of waiters that died
call('ZADD', KEYS[3], 'GT', string.format('%.0f', now_ms + wait_ms), ARGV[1])
return false
