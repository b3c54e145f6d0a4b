-- Finds open tasks whose entries were trimmed or deleted before any worker got them, a step at a time.
-- KEYS: 1 index, 2.. streams of the lanes that are named
-- ARGV: 1 cursor ('0' = begin), 2 how many tasks to look at, 3 group, 4.. names of lanes
-- Returns: {next cursor ('0' = the end), {lane, entry, id, ...}}
-- Called twice: the same again, or others of the step if they are large. Writes nothing.
-- An entry that is older than the first one of its stream is gone. To read that one, or to look for another, copies a payload:
-- beyond a number of bytes an entry counts as present until a later step. Each step begins with another task, because the
-- server gives them in the same order again.
-- include: shared/ids.lua
-- include: shared/now.lua
-- include: shared/pages.lua
local call, lanes = redis.call, {}
for i = 4, #ARGV do lanes[ARGV[i]] = KEYS[i - 2] end

local firsts, first_bytes, bytes = {}, 0, 0
local function first_of(stream) -- '' = the stream is empty, nil = not read
  if not firsts[stream] and first_bytes < ENOUGH then
    local row = call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    first_bytes = first_bytes + (row and weight(row) or 0)
    firsts[stream] = row and row[1] or ''
  end
  return firsts[stream]
end

local function is_gone(stream, entry)
  local pending = redis.pcall('XPENDING', stream, ARGV[3], entry, entry, 1)
  if pending.err or #pending > 0 then return false end -- the group or the stream is lost, or a worker got it
  local first = first_of(stream)
  if first and (first == '' or is_smaller(entry, first)) then return true end
  if first == entry or bytes >= ENOUGH then return false end
  local row = call('XRANGE', stream, entry, entry)[1]
  bytes = bytes + (row and weight(row) or 0)
  return not row
end

local cursor, items = unpack(call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
local count, found = #items / 2, {}
for n = 1, count do
  local i = 2 * ((now_ms + n) % count) + 1
  local entry, name = string.match(items[i + 1], '^(%d+%-%d+) (%S+)')
  local stream = entry and lanes[name]
  if stream and is_gone(stream, entry) then
    for _, word in ipairs({name, entry, items[i]}) do found[#found + 1] = word end
  end
end
return {cursor, found}
