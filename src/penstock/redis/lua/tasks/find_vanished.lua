-- Finds open tasks whose entries were trimmed or deleted before any worker got them, a step at a time.
-- KEYS: 1 index, 2.. streams of the lanes that are named
-- ARGV: 1 cursor ('0' = begin), 2 how many tasks to look at, 3 group, 4.. names of lanes
-- Returns: {next cursor ('0' = the end), {lane, entry, id, ...}}
-- Called twice: the same again. Writes nothing.
-- An entry that is older than the first one of its stream is gone. To look for another one copies its payload, so beyond a
-- number of bytes it counts as present until a later step.
-- include: shared/ids.lua
-- include: shared/pages.lua
local call, lanes = redis.call, {}
for i = 4, #ARGV do
  local stream = KEYS[i - 2]
  local is_readable = type(redis.pcall('XPENDING', stream, ARGV[3])[1]) == 'number' -- else the group or the stream is lost
  local first = is_readable and call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  if is_readable then lanes[ARGV[i]] = {stream, first and first[1]} end
end

local found, bytes = {}, 0
local function is_gone(stream, first, entry)
  if not first or is_smaller(entry, first) then return true end
  if bytes >= ENOUGH then return false end
  local row = call('XRANGE', stream, entry, entry)[1]
  bytes = bytes + (row and weight(row) or 0)
  return not row
end

local cursor, items = unpack(call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
for i = 1, #items, 2 do
  local entry, name = string.match(items[i + 1], '^(%d+%-%d+) (%S+)')
  local lane = entry and lanes[name]
  if lane and is_gone(lane[1], lane[2], entry) and #call('XPENDING', lane[1], ARGV[3], entry, entry, 1) == 0 then
    for _, word in ipairs({name, entry, items[i]}) do found[#found + 1] = word end
  end
end
return {cursor, found}
