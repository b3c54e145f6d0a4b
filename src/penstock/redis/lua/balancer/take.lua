-- Hands out new data streams to this consumer, unless others that have fewer are about to take them: new -> pending.
-- KEYS: 1 load balancer stream, 2 peers
-- ARGV: 1 group, 2 consumer, 3 streams owned, 4 capacity (0 = any), 5 ms for which this consumer counts as alive,
--       6 by how many it may be ahead of the least loaded, 7 ms for which an entry waits for others, 8 how many at most; fewer
--       if they are large
-- Returns: {0, entries}: taken (none = none wait) | {1}: none wait, and others are to have the next | {2}: some wait for others
-- Called twice: takes more. An entry whose reply got lost is pending without a lock, which the next sweep finds.
-- include: balancer/peers.lua
-- include: shared/group_info.lua
-- include: shared/pages.lua
local stream, peers, group, me = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local owned, capacity = tonumber(ARGV[3]), tonumber(ARGV[4])
register(peers, me, now_ms + ARGV[5], owned, capacity)
local count, least = tonumber(ARGV[8]), least_owned(peers, me, now_ms)
if least and least + ARGV[6] <= owned then
  local info = group_info(stream, group)
  local delivered = info and info['last-delivered-id'] or '0-0'
  local first = redis.call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1)[1]
  if not first then return {1} end
  local age = now_ms - tonumber(string.match(first[1], '^%d+'))
  -- An id from the future was chosen by somebody: it says nothing about how long the entry has waited.
  if age >= 0 and age < tonumber(ARGV[7]) then return {2} end
  count = 1
elseif least then
  count = math.min(count, least + ARGV[6] - owned)
end
local rows, bytes, page = {}, 0, 1
while #rows < count and bytes < ENOUGH do
  local wanted, read = math.min(page, count - #rows), 0
  local reply = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', wanted, 'STREAMS', stream, '>')
  local entries = reply and reply[1] and reply[1][2] or {}
  for _, row in ipairs(entries) do rows[#rows + 1], read = row, read + weight(row) end
  if #entries < wanted then break end
  bytes, page = bytes + read, read > LARGE * #entries and 1 or count
end
if #rows > 0 then register(peers, me, now_ms + ARGV[5], owned + #rows, capacity) end
return {0, rows}
