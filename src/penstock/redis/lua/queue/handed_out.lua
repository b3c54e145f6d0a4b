-- Looks at the oldest messages that a group was handed and has not settled, as many as one call can without holding the
-- server up.
-- KEYS: 1 stream, 2 retries
-- ARGV: 1 group, 2 how many at most, 3 '1' = those that wait for their retry, else those that are with a consumer,
--       4 id to begin with ('-' = the first)
-- Returns: {{{id, fields}, ...}, where to go on or '' = there are no more}
-- Called twice: reads only.
-- include: shared/pages.lua
-- include: shared/group_info.lua
local stream, group, most, selects_waiting = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local page, rows, bytes = 500, {}, 0
local exists = redis.call('EXISTS', stream) == 1 and group_info(stream, group)
local pending = exists and redis.call('XPENDING', stream, group, ARGV[4], '+', page) or {}
for _, entry in ipairs(pending) do
  if #rows == most or bytes >= ENOUGH then return {rows, entry[1]} end
  if (redis.call('ZSCORE', KEYS[2], entry[1]) ~= false) == selects_waiting then
    local found = redis.call('XRANGE', stream, entry[1], entry[1])[1]
    if found then rows[#rows + 1], bytes = found, bytes + weight(found) end
  end
end
return {rows, #pending == page and '(' .. pending[page][1] or ''}
