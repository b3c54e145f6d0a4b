-- Records, before a handler starts, that redelivered messages begin once more.
-- KEYS: 1 stream, 2 attempts, 3 worker
-- ARGV: 1 group, 2 consumer, 3 incarnation, then per message: id, deliveries so far, attempts so far
-- Returns: for each message 1 = begin, 0 = it does not belong to this consumer any more.
-- Called twice: the same counts are written again.
local attempts, worker = KEYS[2], KEYS[3]
-- include: streams/each_held.lua
-- include: shared/put_aside.lua
return each_held(3, function(id, i, is_present)
  set_counts(id, me, is_present and ARGV[i + 1] + 1, ARGV[i + 2] + 1)
end)
