-- Trims what every group is done with, or what is older than an id, oldest first, and never anything else.
-- KEYS: 1 stream
-- ARGV: 1 how many of these entries may go, 2 the id (absent = what every group is done with)
-- Returns: number of entries removed, as many as one call can without holding the server up; 0 = there are no more
-- Called twice: trims further, up to the same limits; the caller counts anew in between.
-- include: shared/trim_oldest.lua
local stream, excess = KEYS[1], tonumber(ARGV[1])
local limit = ARGV[2] or needed_from(stream)
if not limit or excess <= 0 then return 0 end
return trim_oldest(stream, limit, excess)
