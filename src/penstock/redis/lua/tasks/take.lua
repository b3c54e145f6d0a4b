-- Hands out new tasks of several lanes to this consumer, the lanes in the given order: queued -> pending.
-- KEYS: 1 due, 2 index, then per lane: stream, retries
-- ARGV: 1 group, 2 consumer, 3 how many at most (fewer if they are large), then per lane: how many of it before the others had their turn
-- Returns: {ms until a scheduled task is due or -1, {per lane: ms until a waiting task is due or -1}, {{lane, {entries}}, ...},
--       {ids of the entries whose tasks are open in other entries}}
-- Called twice: the second call hands out the next ones; what the first took is pending with this consumer.
local call = redis.call
local group, me, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- include: shared/now.lua
-- include: shared/pages.lua
-- include: tasks/open_elsewhere.lua

local function wait_ms(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if not first[2] then return -1 end
  return math.max(0, first[2] - now_ms)
end

local TOGETHER = 16 -- small tasks that one read takes: more than elsewhere, for every task comes this way
local waits, rows, is_empty, bytes, page = {}, {}, {}, 0, 1
local lanes = (#KEYS - 2) / 2
local function read(lane, count)
  while count > 0 and not is_empty[lane] and bytes < ENOUGH do
    local wanted = math.min(page, count)
    local reply = call('XREADGROUP', 'GROUP', group, me, 'COUNT', wanted, 'STREAMS', KEYS[2 * lane + 1], '>')
    local entries, read = reply and reply[1] and reply[1][2] or {}, 0
    is_empty[lane] = #entries < wanted
    if #entries > 0 then
      rows[#rows + 1] = {lane, entries}
      for _, row in ipairs(entries) do read = read + weight(row) end
      bytes, count, left = bytes + read, count - #entries, left - #entries
      page = read > LARGE * #entries and 1 or TOGETHER
    end
  end
end

for lane = 1, lanes do
  waits[lane] = wait_ms(KEYS[2 * lane + 2])
  read(lane, math.min(left, tonumber(ARGV[3 + lane])))
end
for lane = 1, lanes do read(lane, left) end

local ids, entries, elsewhere = {}, {}, {}
for _, found in ipairs(rows) do
  for _, row in ipairs(found[2]) do
    if row[2][3] == 'task_id' then ids[#ids + 1], entries[#entries + 1] = row[2][4], row[1] end -- as enqueue.lua writes it
  end
end
for n, known in ipairs(#ids > 0 and call('HMGET', KEYS[2], unpack(ids)) or {}) do
  if is_open_elsewhere(known, entries[n]) then elsewhere[#elsewhere + 1] = entries[n] end
end
return {wait_ms(KEYS[1]), waits, rows, elsewhere}
