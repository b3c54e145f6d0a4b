-- Counts entries of a range without sending them, as many as one call can without holding the server up.
-- KEYS: 1 stream
-- ARGV: 1 from, 2 to, 3 how many to count at most. 'needed' as from = from the first id that some group needs;
--       as to = up to it, exclusive. Without a group everything is needed.
-- Returns: {counted, id of the first or '', where to go on or '' = the range has ended, length of the stream, now in ms}
-- Called twice: reads only.
-- include: shared/needed.lua
-- include: shared/pages.lua
local from, to = ARGV[1], ARGV[2]
if from == 'needed' or to == 'needed' then
  local limit = needed_from(KEYS[1])
  if from == 'needed' then from = limit or '-' end
  if to == 'needed' then to = limit and '(' .. limit or '(0-1' end
end
-- include: shared/now.lua
local first
local counted, last, is_end = walk(KEYS[1], from, to, tonumber(ARGV[3]), function(row) first = first or row[1] end)
return {counted, first or '', is_end and '' or next_id(last), redis.call('XLEN', KEYS[1]), now_ms}
