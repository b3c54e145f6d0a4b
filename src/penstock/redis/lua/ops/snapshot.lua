-- Reads a stream and its groups at one moment, without sending a payload; reads only.
-- KEYS: 1 stream
-- ARGV: 1 how many groups to read at most, 2 the only group to read, '' = all, 3 how many groups to leave out before
-- Returns: {length, id of the first entry or '', id of the last or '', last generated id, entries ever added or -1 = the server
--       does not count, '1' = its first and its last entry say that they are dead letters, now in ms, how many groups there are,
--       {{name, consumers, pending, last delivered id, entries read or -1, lag by the server or -1,
--         id of the first unread entry, '' = there is none, '?' = it was not looked for, oldest pending id or '', its idle ms},
--        ...}}; {} = there is no such stream
-- Called twice: the same again.
-- XINFO STREAM copies two payloads, and the look for an unread entry one: after some large ones no more are looked for. Where
-- entries have megabytes, no payload is touched: ids of entries are '' or '?' then, and what was ever added is -1.
-- include: shared/ids.lua
-- include: shared/group_info.lua
-- include: shared/pages.lua
-- include: shared/huge.lua
-- include: shared/now.lua
local stream, most, only, left_out = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
if redis.call('EXISTS', stream) == 0 then return {} end
local length = redis.call('XLEN', stream)
local is_huge = has_huge_entries(stream)
local info = is_huge and {} or as_table(redis.call('XINFO', 'STREAM', stream))
local first, last = info['first-entry'] or nil, info['last-entry'] or nil -- false where there is none
local read = first and weight(first) + weight(last) or 0
local function is_dead_letter(entry)
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'dlq_reason' then return true end
  end
end
local are_dead_letters = is_dead_letter(first) and is_dead_letter(last) and '1' or '0'
local last_id = last and last[1] or ''

local function first_unread(delivered)
  if is_huge then return '?' end
  if not last or not is_smaller(delivered, last_id) then return '' end
  if is_smaller(delivered, first[1]) then return first[1] end
  if read > ENOUGH then return '?' end
  local row = redis.call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1)[1]
  if not row then return '' end
  read = read + weight(row)
  return row[1]
end

local groups, found = redis.call('XINFO', 'GROUPS', stream), {}
for n, each in ipairs(groups) do
  if n > left_out and #found < most and (only == '' or each[2] == only) then
    local group = as_table(each)
    local oldest = group['pending'] > 0 and redis.call('XPENDING', stream, group['name'], '-', '+', 1)[1] or {'', '', 0}
    found[#found + 1] = {
      group['name'], group['consumers'], group['pending'], group['last-delivered-id'], group['entries-read'] or -1,
      group['lag'] or -1, first_unread(group['last-delivered-id']), oldest[1], oldest[3],
    }
  end
end
return {
  length, first and first[1] or '', last_id, info['last-generated-id'] or '', info['entries-added'] or -1, are_dead_letters,
  now_ms, #groups, found,
}
