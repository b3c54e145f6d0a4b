-- Looks at the oldest messages that a group has not been handed yet, as many as one call can without holding the server up.
-- KEYS: 1 stream
-- ARGV: 1 group, 2 how many at most, 3 '1' = only those that may be dropped and their deduplication keys, else whole entries,
--       4 id to begin with ('' = the first that is unread)
-- Returns: {{{id, deduplication key or ''}, ...} or {{id, fields}, ...}, where to go on or '' = there are no more}
-- Called twice: reads only.
-- include: shared/ids.lua
-- include: shared/group_info.lua
-- include: shared/pages.lua
local from = ARGV[4] ~= '' and ARGV[4] or '-'
local info = from == '-' and redis.call('EXISTS', KEYS[1]) == 1 and group_info(KEYS[1], ARGV[1])
if info then
  from = next_id(info['last-delivered-id'])
  if from == info['last-delivered-id'] then return {{}, ''} end -- it was handed the last id that there can be
end
local rows = {}
local function with_key(row)
  local key = ''
  for i = 1, #row[2], 2 do
    if row[2][i] == 'dedup_key' then key = row[2][i + 1] end
  end
  rows[#rows + 1] = {row[1], key}
end
local function whole(row) rows[#rows + 1] = row end
local _, last, is_end = walk(KEYS[1], from, '+', tonumber(ARGV[2]), ARGV[3] == '1' and with_key or whole)
return {rows, is_end and '' or next_id(last)}
