-- Puts messages of this consumer aside until they are due: pending -> waiting. Serves retry, snooze and hand-back,
-- which differ only in the delay and in the counts that they leave behind.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 worker
-- ARGV: 1 group, 2 consumer, 3 incarnation, then per message: id, delay in ms, deliveries to keep, attempts to keep
-- Returns: for each message 1 = parked, 0 = it does not belong to this consumer any more.
-- Called twice: the same time and counts are written again (the delay starts anew).
local retries, attempts, worker = KEYS[2], KEYS[3], KEYS[4]
-- include: streams/each_held.lua
-- include: shared/now.lua
-- include: shared/put_aside.lua
return each_held(4, function(id, i, is_present)
  put_aside(id, me, is_present and ARGV[i + 2], ARGV[i + 3], now_ms + ARGV[i + 1])
end)
