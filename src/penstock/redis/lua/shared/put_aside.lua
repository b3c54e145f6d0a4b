-- Included by scripts that change the counts of pending entries. They define: stream, group, attempts; and retries to put aside.
-- set_counts(id, holder, deliveries, begun) leaves the entry with its holder. deliveries = nil: the entry has vanished; XCLAIM
-- would drop it from the pending list, and take_due.lua would not find it and dead-letter it.
-- put_aside(id, holder, deliveries, begun, due_ms) has it wait as well: recover.lua passes over it until take_due.lua hands it out.
-- XCLAIM first: the later writes are then allowed at the memory limit.
local function set_counts(id, holder, deliveries, begun)
  if deliveries then redis.call('XCLAIM', stream, group, holder, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID') end
  redis.call('HSET', attempts, id, begun)
end

local function put_aside(id, holder, deliveries, begun, due_ms)
  set_counts(id, holder, deliveries, begun)
  redis.call('ZADD', retries, string.format('%.0f', due_ms), id)
end
