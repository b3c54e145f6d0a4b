-- Makes the tasks of silent workers available again: pending -> waiting (due now), or -> dead after the last run. Counts stay:
-- they are raised when a handler begins. A suspect is a task whose worker died before; its last run had no neighbours.
-- The last run of another task does not count, because the worker may have died of a neighbour: it runs again, alone.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 suspects, 5 dead, 6 index, 7 unique, 8 counts, 9 results, 10 done, 11 awaited
-- ARGV: 1 group, 2 minimum silence in ms, 3 how many at most, 4 cursor, 5 how many entries the slow sweep reads,
--       6 how often a task may be retried, 7 now (ISO 8601)
-- Returns: {next cursor, how many are due now, {ids of the tasks that are dead}, 1 = there are more than one call can read, or pass
--       over, without blocking the server, {entries that vanished: they stay pending}}
-- Called twice: the second call finds others.
local call = redis.call
local stream, retries, attempts, suspects, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local index, unique, counts, results, done, awaited = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local group, limit, most, now_text = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[6]), ARGV[7]
-- include: shared/now.lua
-- include: tasks/dead_letter_task.lua
-- include: shared/pages.lua
-- include: shared/put_aside.lua
-- include: shared/each_silent.lua
local freed, gone, vanished, bytes = 0, {}, {}, 0

local function room() return bytes < ENOUGH and limit - freed - #gone - #vanished or 0 end

local function take(entry)
  local begun = tonumber(call('HGET', attempts, entry[1]) or entry[4])
  -- Looked for before XCLAIM, which drops an entry without a body from the list, and with it the trace of a task.
  local row = call('XRANGE', stream, entry[1], entry[1])[1]
  if not row then
    vanished[#vanished + 1] = entry[1]
    return
  end
  bytes = bytes + weight(row)
  local was_last = begun > most and (most == 0 or call('SISMEMBER', suspects, entry[1]) == 1)
  if was_last then
    gone[#gone + 1] = dead_letter_task(entry, begun, 'max_deliveries', 'WorkerDied',
      'the process that had it ended or was silent in attempt ' .. begun .. ': killed, os._exit(), out of memory?')
    return
  end
  put_aside(entry[1], entry[2], entry[4], begun > most and begun - 1 or begun, now_ms)
  call('SADD', suspects, entry[1])
  freed = freed + 1
end

local cursor, is_more = each_silent(tonumber(ARGV[2]), nil, room, ARGV[4], tonumber(ARGV[5]), take)
return {cursor, freed, gone, (is_more or bytes >= ENOUGH) and 1 or 0, vanished}
