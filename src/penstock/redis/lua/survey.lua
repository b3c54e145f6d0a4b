-- Counts entries of a range without sending them.
-- KEYS: 1 stream
-- ARGV: 1 from, 2 to, 3 how many to count at most. 'needed' as from = from the first id that some group needs;
--       as to = up to it, exclusive. Without a group everything is needed.
-- Returns: {counted, id of the first or '', id of the last or '', length of the stream, now in ms}
-- Called twice: reads only.
-- include: needed.lua
local from, to = ARGV[1], ARGV[2]
if from == 'needed' or to == 'needed' then
  local limit = needed_from(KEYS[1])
  if from == 'needed' then from = limit or '-' end
  if to == 'needed' then to = limit and '(' .. limit or '(0-1' end
end
local clock = redis.call('TIME')
local rows = redis.call('XRANGE', KEYS[1], from, to, 'COUNT', ARGV[3])
return {#rows, rows[1] and rows[1][1] or '', rows[#rows] and rows[#rows][1] or '', redis.call('XLEN', KEYS[1]),
  clock[1] * 1000 + math.floor(clock[2] / 1000)}
