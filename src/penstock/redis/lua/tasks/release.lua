-- Settles a pending task, or renews its lease: pending -> waiting, -> dead, or -> acknowledged. One that was never handed out is
-- given up if its entry is `missing`.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 suspects, 5 dead, 6 index, 7 unique, 8 counts, 9 results, 10 done, 11 awaited,
--       12 notice of the task
-- ARGV: 1 group, 2 consumer that must hold it ('' = any), 3 id of the entry, 4 what: 'ack', 'nack', 'dead_letter' or 'extend',
--       5 delay in ms, 6 '1' = the run counts, '0' = it does not, '-' = it never began, 7 how often it may be tried again,
--       8 reason, 9 error, 10 text, 11 now (ISO 8601), 12 kind ('' = look), 13 id of the task, 14 traceback,
--       15 runs before this one ('' = one less than recorded)
-- Returns: 'waiting', 'dead', 'acked', 'extended', or 'gone' = it is not pending (with that consumer), or not given up,
--       because its holder has renewed it
-- Called twice: 'gone', except that a delay starts anew.
local call = redis.call
local stream, retries, attempts, suspects, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local index, unique, counts, results, done, awaited = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local group, entry_id, what, now_text = ARGV[1], ARGV[3], ARGV[4], ARGV[11]
-- include: shared/now.lua
-- include: tasks/dead_letter_task.lua
-- include: shared/put_aside.lua
local entry = call('XPENDING', stream, group, entry_id, entry_id, 1)[1]
if not entry and ARGV[8] == 'missing' and #call('XRANGE', stream, entry_id, entry_id) == 0 then
  local known = call('HGET', index, ARGV[13])
  if known and not is_open_elsewhere(known, entry_id) then entry = {entry_id, '', 0, 0} end
end
if entry and ARGV[8] == 'missing' and tonumber(call('ZSCORE', retries, entry_id) or 0) > now_ms then
  return 'gone' -- renewed since it was found: see hold_vanished.lua
end
if not entry or (ARGV[2] ~= '' and entry[2] ~= ARGV[2]) then return 'gone' end
local begun = tonumber(call('HGET', attempts, entry_id) or entry[4])
if what == 'extend' then
  if #call('XRANGE', stream, entry_id, entry_id) == 0 then return 'extended' end -- XCLAIM would drop it: see hold_vanished.lua
  if call('ZSCORE', retries, entry_id) then return 'gone' end -- it waits, and no worker holds it
  call('XCLAIM', stream, group, entry[2], 0, entry_id, 'RETRYCOUNT', entry[4], 'JUSTID')
  return 'extended'
end
local kind = ARGV[12]
if kind == '' then
  local row = call('XRANGE', stream, entry_id, entry_id)[1]
  kind = row and field(row[2], 'kind') or ''
end
if what == 'ack' then
  call('XACK', stream, group, entry_id)
  remove_references(entry_id)
  forget_tasks({ARGV[13]}, {entry_id})
  count_kind('acked', kind, 1)
  return 'acked'
end
local is_missing = #call('XRANGE', stream, entry_id, entry_id) == 0
if what == 'dead_letter' or is_missing or (ARGV[6] == '1' and begun > tonumber(ARGV[7])) then
  dead_letter_task(entry, begun, ARGV[8], ARGV[9], ARGV[10], KEYS[12], ARGV[13], kind, ARGV[14])
  return 'dead'
end
if ARGV[6] ~= '1' then
  if ARGV[15] ~= '' then
    begun = tonumber(ARGV[15])
  elseif not call('ZSCORE', retries, entry_id) then -- else by a call whose answer got lost: no second run is taken off
    begun = math.max(0, begun - 1)
  end
end
put_aside(entry_id, entry[2], begun, begun, now_ms + ARGV[5])
if ARGV[6] ~= '-' then call('SREM', suspects, entry_id) end -- its run ended, and its process lives
return 'waiting'
