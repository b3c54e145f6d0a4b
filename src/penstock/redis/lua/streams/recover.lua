-- Takes over messages whose holder was silent for the length of the lease: pending -> pending with this consumer.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 dead letters, if missing messages are to be settled
-- ARGV: 1 group, 2 consumer, 3 lease in ms, 4 how many at most (fewer if they are large), 5 cursor, 6 how many entries of the slow sweep to look at
-- Returns: {next cursor, {{id, count, attempts, fields}, ...}, {missing ids}, 1 = call again at once: rows that wait hide others}
-- Called twice: the second call finds other messages; what the first took is pending with this consumer.
-- include: streams/claim.lua
-- include: shared/each_silent.lua
local out, missing, limit = {}, {}, tonumber(ARGV[4])
local function room() return is_enough() and 0 or limit - #out - #missing end
local function take(entry) claim(entry, out, missing) end
local cursor, is_more = each_silent(tonumber(ARGV[3]), me, room, ARGV[5], tonumber(ARGV[6]), take)
return {cursor, out, missing, is_more and 1 or 0}
