-- Counts the pending tasks of a lane; read-only.
-- KEYS: 1 stream, 2 retries
-- ARGV: 1 group, 2 how many entries to read at most, 3 id to begin with ('-' = the first)
-- Returns: {in hand, waiting for their next run, greatest idle time in ms of those in hand that were read, where to
--       continue or '' = there are no more}
-- Called twice: the same again.
local call = redis.call
local total, waiting, longest = call('XPENDING', KEYS[1], ARGV[1])[1], call('ZCARD', KEYS[2]), 0
local page = call('XPENDING', KEYS[1], ARGV[1], ARGV[3], '+', ARGV[2])
for _, entry in ipairs(page) do
  if entry[3] > longest and not call('ZSCORE', KEYS[2], entry[1]) then longest = entry[3] end
end
return {total - waiting, waiting, longest, #page == tonumber(ARGV[2]) and '(' .. page[#page][1] or ''}
