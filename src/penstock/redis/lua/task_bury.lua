-- Included by scripts that may give a task up. They define: call, stream, retries, attempts, suspects, dead, index,
-- unique, counts, results, done, awaited, group, now_ms, now_text (ISO 8601).
-- bury_task(pending, begun, reason, error, text, notice, id, kind) moves the entry of one row of XPENDING to the dead letters, with
-- an error as its result for whoever waits. XADD before XACK: when the record cannot be written, the task stays pending.
-- include: task_store.lua
-- include: task_forget.lua
local function field(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return ''
end

local function strike(entry)
  call('ZREM', retries, entry)
  call('HDEL', attempts, entry)
  call('SREM', suspects, entry)
end

local function bury_task(pending, begun, reason, error, text, notice, id, kind)
  local entry = pending[1]
  local row = call('XRANGE', stream, entry, entry)[1]
  local record = row and row[2] or {}
  if not row then reason, text = 'missing', 'the entry was trimmed or deleted while it was pending' end
  id, kind = id or field(record, 'task_id'), kind or field(record, 'kind')
  if kind == '' then kind = 'unknown' end
  local told = {'dlq_reason', reason, 'dlq_source', stream, 'dlq_id', entry, 'dlq_group', group, 'dlq_consumer', pending[2],
    'dlq_error', error, 'dlq_error_text', text, 'dlq_attempts', string.format('%.0f', begun),
    'dlq_deliveries', tostring(pending[4]), 'dlq_time', string.format('%.0f', now_ms)}
  for _, part in ipairs(told) do record[#record + 1] = part end
  call('XADD', dead, '*', unpack(record))
  if id ~= '' and not known_results({id})[1] then
    local cause = error ~= '' and error .. ': ' .. text or text
    store_results({{id, kind, 'error', cjson.encode({task_id = id, kind = kind, status = 'error', error = cause,
      attempts = begun, finished_at = now_text}), notice}})
  end
  call('XACK', stream, group, entry)
  strike(entry)
  if id ~= '' then forget_tasks({id}, {entry}) end
  call('HINCRBY', counts, 'dead:' .. kind, 1)
  return id, kind
end
