-- Hands the tasks of silent workers to whoever comes next: pending -> waiting (due now), or -> dead when it was their last
-- run. That counts as a run: the worker may have died of it.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 suspects, 5 dead, 6 index, 7 unique, 8 counts, 9 results, 10 done, 11 awaited
-- ARGV: 1 group, 2 silent for at least so many ms, 3 how many at most, 4 cursor, 5 how many entries of the slow sweep to look
--       at, 6 how often a task may be tried again, 7 now (ISO 8601)
-- Returns: {next cursor, how many are due now, {ids of the tasks that are dead}, 1 = there are more than one call can look at
--       without holding the server up}
-- Called twice: the second call finds others.
-- Two looks, as recover.lua has them: silent consumers first, then a page of the whole list.
local call = redis.call
local stream, retries, attempts, suspects, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local index, unique, counts, results, done, awaited = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local group, idle_ms, limit, most, now_text = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6]), ARGV[7]
local clock = call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- include: tasks/dead_letter_task.lua
-- include: shared/pages.lua
local freed, gone, bytes = 0, {}, 0

local function consider(entry)
  if entry[3] < idle_ms or call('ZSCORE', retries, entry[1]) then return end
  local begun = tonumber(call('HGET', attempts, entry[1]) or entry[4])
  -- Looked for before XCLAIM, which drops an entry without a body from the list, and with it the trace of a task.
  local row = call('XRANGE', stream, entry[1], entry[1])[1]
  bytes = bytes + (row and weight(row) or 0)
  if begun > most or not row then
    gone[#gone + 1] = dead_letter_task(entry, begun, 'max_deliveries', '', 'its workers died or were silent, ' .. begun .. ' times')
    return
  end
  call('XCLAIM', stream, group, entry[2], 0, entry[1], 'RETRYCOUNT', entry[4], 'JUSTID')
  call('HSET', attempts, entry[1], begun)
  call('SADD', suspects, entry[1])
  call('ZADD', retries, string.format('%.0f', now_ms), entry[1])
  freed = freed + 1
end

for _, consumer in ipairs(call('XINFO', 'CONSUMERS', stream, group)) do
  local info = {}
  for i = 1, #consumer, 2 do info[consumer[i]] = consumer[i + 1] end
  local room = limit - freed - #gone
  if room > 0 and bytes < ENOUGH and info['pending'] > 0 and info['idle'] >= idle_ms then
    for _, entry in ipairs(call('XPENDING', stream, group, 'IDLE', idle_ms, '-', '+', room, info['name'])) do
      if bytes < ENOUGH then consider(entry) end
    end
  end
end

local cursor = ARGV[4]
local page = call('XPENDING', stream, group, cursor, '+', ARGV[5])
for _, entry in ipairs(page) do
  if freed + #gone >= limit or bytes >= ENOUGH then break end
  cursor = '(' .. entry[1]
  consider(entry)
end
if #page < tonumber(ARGV[5]) and freed + #gone < limit and bytes < ENOUGH then cursor = '-' end
return {cursor, freed, gone, bytes >= ENOUGH and 1 or 0}
