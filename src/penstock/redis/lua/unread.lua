-- Looks at the oldest messages that a group has not been handed yet.
-- KEYS: 1 stream
-- ARGV: 1 group, 2 how many at most, 3 '1' = only those that may be dropped and their deduplication keys, else whole entries
-- Returns: {{id, deduplication key or ''}, ...} or {{id, fields}, ...}
-- Called twice: reads only.
local from = '-'
for _, info in ipairs(redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}) do
  if info[2] == ARGV[1] then
    for i = 3, #info, 2 do
      if info[i] == 'last-delivered-id' and info[i + 1] ~= '0-0' then from = '(' .. info[i + 1] end
    end
  end
end
local rows = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[2])
if ARGV[3] ~= '1' then return rows end
for n, row in ipairs(rows) do
  local key = ''
  for i = 1, #row[2], 2 do
    if row[2][i] == 'dedup_key' then key = row[2][i + 1] end
  end
  rows[n] = {row[1], key}
end
return rows
