-- Records, before a handler starts, that redelivered messages begin once more.
-- KEYS: 1 stream, 2 attempts, 3 worker
-- ARGV: 1 group, 2 consumer, 3 incarnation, then per message: id, deliveries so far, attempts so far
-- Returns: for each message 1 = begin, 0 = it does not belong to this consumer any more.
-- Called twice: the same counts are written again.
-- XCLAIM first: the later HSET is then allowed at the memory limit. It would drop an entry that has vanished: see park.lua.
-- include: streams/fence.lua
-- include: streams/presence.lua
local stream, group, me = KEYS[1], ARGV[1], ARGV[2]
local refusal = fenced(KEYS[3], ARGV[3], me)
if refusal then return refusal end
local answers, is_present = {}, presence(stream, (#ARGV - 3) / 3)
for i = 4, #ARGV, 3 do
  local id = ARGV[i]
  if #redis.call('XPENDING', stream, group, id, id, 1, me) == 1 then
    if is_present(id) then
      redis.call('XCLAIM', stream, group, me, 0, id, 'RETRYCOUNT', ARGV[i + 1] + 1, 'JUSTID')
    end
    redis.call('HSET', KEYS[2], id, ARGV[i + 2] + 1)
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = 0
  end
end
return answers
