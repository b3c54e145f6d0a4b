-- Lets go of results that are older than their retention, oldest first, and of what leads to them.
-- KEYS: 1 results, 2 done
-- ARGV: 1 how long results are kept, in ms, 2 how many at most (one call stays short)
-- Returns: how many went
-- Called twice: goes on.
local call = redis.call
local clock = call('TIME')
local limit = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000) - ARGV[1])
local rows = call('XRANGE', KEYS[1], '-', '(' .. limit .. '-0', 'COUNT', ARGV[2])
if #rows == 0 then return 0 end
local gone, entries = {}, {}
for n, row in ipairs(rows) do
  entries[n] = row[1]
  if row[2][1] == 'task_id' and call('HGET', KEYS[2], row[2][2]) == row[1] then gone[#gone + 1] = row[2][2] end
end
if #gone > 0 then call('HDEL', KEYS[2], unpack(gone)) end
return call('XDEL', KEYS[1], unpack(entries))
