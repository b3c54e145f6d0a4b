-- Looks at the oldest messages that a group was handed and has not settled.
-- KEYS: 1 stream, 2 retries
-- ARGV: 1 group, 2 how many at most, 3 '1' = those that wait for their retry, else those that are with a consumer
-- Returns: {{id, fields}, ...}
-- Called twice: reads only.
local stream, group, most, wants_waiting = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local page, rows, from = 500, {}, '-'
local exists = false
for _, info in ipairs(redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'GROUPS', stream) or {}) do
  exists = exists or info[2] == group
end
while exists and #rows < most do
  local pending = redis.call('XPENDING', stream, group, from, '+', page)
  for _, entry in ipairs(pending) do
    local is_waiting = redis.call('ZSCORE', KEYS[2], entry[1]) ~= false
    if #rows < most and is_waiting == wants_waiting then
      local found = redis.call('XRANGE', stream, entry[1], entry[1])[1]
      if found then rows[#rows + 1] = found end
    end
    from = '(' .. entry[1]
  end
  if #pending < page then break end
end
return rows
