-- Puts messages of this consumer aside until they are due: pending -> waiting. Serves retry, snooze and hand-back,
-- which differ only in the delay and in the counts that they leave behind.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 worker
-- ARGV: 1 group, 2 consumer, 3 incarnation, then per message: id, delay in ms, deliveries to keep, attempts to keep
-- Returns: for each message 1 = parked, 0 = it does not belong to this consumer any more.
-- Called twice: the same time and counts are written again (the delay starts anew).
-- The entry stays pending with its owner; recover.lua passes over it until take_due.lua hands it out.
-- XCLAIM first: the later writes are then allowed at the memory limit. An entry that has vanished is left as it is: XCLAIM
-- would drop it from the pending list, and take_due.lua would not find it and dead-letter it.
-- include: streams/fence.lua
-- include: streams/presence.lua
local stream, group, me = KEYS[1], ARGV[1], ARGV[2]
local refusal = fenced(KEYS[4], ARGV[3], me)
if refusal then return refusal end
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answers, is_present = {}, presence(stream, (#ARGV - 3) / 4)
for i = 4, #ARGV, 4 do
  local id = ARGV[i]
  if #redis.call('XPENDING', stream, group, id, id, 1, me) == 1 then
    if is_present(id) then
      redis.call('XCLAIM', stream, group, me, 0, id, 'RETRYCOUNT', ARGV[i + 2], 'JUSTID')
    end
    redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms + ARGV[i + 1]), id)
    redis.call('HSET', KEYS[3], id, ARGV[i + 3])
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = 0
  end
end
return answers
