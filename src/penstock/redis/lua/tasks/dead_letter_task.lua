-- Included by scripts that may give a task up. They define: call, stream, retries, attempts, suspects, dead, index,
-- unique, counts, results, done, awaited, group, now_ms, now_text (ISO 8601).
-- dead_letter_task(pending, begun, reason, error, text, notice, id, kind, traceback) moves the entry of one row of XPENDING to the dead
-- letters, with an error as its result. XADD before XACK: when the record cannot be written, the task stays pending.
-- include: shared/kept_fields.lua
-- include: shared/dead_letter_record.lua
-- include: tasks/store_results.lua
-- include: tasks/forget_tasks.lua
-- include: tasks/count_kind.lua
local function field(fields, name)
  for i = #fields - 1, 1, -2 do -- of fields with one name the last one counts
    if fields[i] == name then return fields[i + 1] end
  end
  return ''
end

local function remove_references(entry)
  call('ZREM', retries, entry)
  call('HDEL', attempts, entry)
  call('SREM', suspects, entry)
end

-- Any program can write an entry with the id of another task. Only the entry that the index has for a task may set its
-- result; another entry may only if no task of that id is open, and it could be read as a task.
local function may_set_result(id, entry, reason)
  if id == '' then return false end
  local known = call('HGET', index, id)
  if known then return not is_open_elsewhere(known, entry) end
  local was_read = reason ~= 'decode_error' and reason ~= 'not_authentic'
  return was_read and #id <= 128 and string.match(id, '^%w[%w_.-]*$') ~= nil
end

local function dead_letter_task(pending, begun, reason, error, text, notice, id, kind, traceback)
  local entry = pending[1]
  local row = call('XRANGE', stream, entry, entry)[1]
  local record, cut = kept_fields(row and row[2] or {})
  if not row then
    reason, text = 'missing', 'the entry was trimmed or deleted before the task ended'
    if id and id ~= '' then record = {'task_id', id} end
  end
  id, kind = id or field(record, 'task_id'), known_kind(kind or field(record, 'kind'))
  if cut then record[#record + 1], record[#record + 2] = 'dlq_cut', cut end
  record[#record + 1], record[#record + 2] = 'dlq_traceback', traceback or ''
  call('XADD', dead, '*', unpack(dead_letter_record(record, pending, reason, error, text, string.format('%.0f', begun))))
  if may_set_result(id, entry, reason) and not known_results({id})[1] then
    local cause = error ~= '' and error .. ': ' .. text or text
    store_results({{id, kind, 'error', cjson.encode({task_id = id, kind = kind, status = 'error', error = cause,
      attempts = begun, finished_at = now_text, traceback = traceback ~= '' and traceback or nil}), notice}})
  end
  call('XACK', stream, group, entry)
  remove_references(entry)
  if id ~= '' then forget_tasks({id}, {entry}) end
  count_kind('dead', kind, 1)
  return id, kind
end
