-- Included by scripts that write dead letters by themselves. They define: stream, group, now_ms.
-- dead_letter_record(fields, entry, reason, error, text, begun) returns the fields of an entry, and after them what became of it:
-- entry is its row of XPENDING. The names are those of dead_letter_record.py.
local function dead_letter_record(fields, entry, reason, error, text, begun)
  local record = {'dlq_reason', reason, 'dlq_source', stream, 'dlq_id', entry[1], 'dlq_group', group, 'dlq_consumer', entry[2],
    'dlq_error', error, 'dlq_error_text', text, 'dlq_attempts', begun, 'dlq_deliveries', tostring(entry[4]),
    'dlq_time', string.format('%.0f', now_ms)}
  for _, word in ipairs(record) do fields[#fields + 1] = word end
  return fields
end
