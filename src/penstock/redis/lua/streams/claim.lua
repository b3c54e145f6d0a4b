-- Included by scripts that hand a pending entry to this consumer again.
-- claim(entry, out, missing): entry is one row of XPENDING {id, owner, idle, count}. Appends {id, count, attempts, fields}
-- to out. The delivery count stays: it is raised by begin.lua when a handler really starts.
-- An entry whose body is gone is recorded in the dead letters and leaves the pending list (6.2 keeps it there for ever).
-- XADD before XACK; when the dead-letter stream refuses (memory, type), the entry stays pending.
local stream, retries, attempts, dead_letters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, me = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function dead_letter_missing(entry, missing)
  local reply = redis.pcall('XADD', dead_letters, '*', 'dlq_reason', 'missing', 'dlq_source', stream, 'dlq_id', entry[1],
    'dlq_group', group, 'dlq_consumer', entry[2], 'dlq_error', '', 'dlq_error_text',
    'the entry was trimmed or deleted while it was pending', 'dlq_attempts', redis.call('HGET', attempts, entry[1]) or '0',
    'dlq_deliveries', tostring(entry[4]), 'dlq_time', string.format('%.0f', now_ms))
  if type(reply) == 'table' and reply.err then return end
  redis.call('XACK', stream, group, entry[1])
  redis.call('HDEL', attempts, entry[1])
  redis.call('ZREM', retries, entry[1])
  missing[#missing + 1] = entry[1]
end

local function claim(entry, out, missing)
  local id, count = entry[1], entry[4]
  local found = redis.call('XRANGE', stream, id, id)
  if #found == 0 then return dead_letter_missing(entry, missing) end
  redis.call('XCLAIM', stream, group, me, 0, id, 'RETRYCOUNT', count, 'JUSTID')
  out[#out + 1] = {id, count, tonumber(redis.call('HGET', attempts, id) or count), found[1][2]}
end
