-- Trims what every group is done with, oldest first, and never anything else.
-- KEYS: 1 stream
-- ARGV: 1 how many entries at most (one call stays short), 2 how many of the finished entries may go
-- Returns: number of entries removed
-- Called twice: trims further, up to the same limits; the caller counts anew in between.
-- include: needed.lua
local limit = needed_from(KEYS[1])
local excess = math.min(tonumber(ARGV[1]), tonumber(ARGV[2]))
if not limit or excess <= 0 then return 0 end
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', excess + 1)
if #oldest == 0 then return 0 end
local cut = oldest[#oldest][1]
if #oldest <= excess or is_smaller(limit, cut) then cut = limit end
return redis.call('XTRIM', KEYS[1], 'MINID', cut)
