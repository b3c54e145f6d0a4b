-- Trims what every group is done with, oldest first, and never anything else.
-- KEYS: 1 stream
-- ARGV: 1 how many of the finished entries may go
-- Returns: number of entries removed, as many as one call can without holding the server up; 0 = there are no more
-- Called twice: trims further, up to the same limits; the caller counts anew in between.
-- include: needed.lua
-- include: pages.lua
-- include: trim_before.lua
local stream, excess = KEYS[1], tonumber(ARGV[1])
local limit = needed_from(stream)
if not limit or excess <= 0 then return 0 end
local removed, is_more = trim_before(stream, limit, 0, excess)
if is_more or removed == excess then return removed end
-- What is left is a part of one node, or of few.
if redis.call('XLEN', stream) <= excess - removed then return removed + redis.call('XTRIM', stream, 'MINID', limit) end
local counted, last = walk(stream, '-', '(' .. limit, excess - removed, function() end)
if counted == 0 then return removed end
return removed + redis.call('XTRIM', stream, 'MINID', next_id(last))
