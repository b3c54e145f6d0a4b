-- Extends the locks of owned data streams, takes up those that ran out unnoticed, and refreshes their pending entries.
-- KEYS: 1 load balancer stream, 2 peers, 3.. locks (absent in a cluster, where they were extended before this)
-- ARGV: 1 group, 2 consumer, 3 TTL of the locks in ms, 4 idle ms to give to the entries, 5 streams owned, 6 capacity,
--       7 ms for which this consumer counts as alive, 8 how many of the entries, from the first on, are owned; the others
--       are being claimed, and their locks are extended, not taken up, 9.. entry ids in the order of the locks
-- Returns: {ids of streams that are not this consumer's, or not any more}
-- Called twice: extends again.
-- A lock that another consumer holds is left alone, and an entry is refreshed only under this consumer's lock: XCLAIM to
-- oneself would take it back. The idle time is not set to 0: see own.lua.
-- include: balancer/peers.lua
local stream, group, me, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
register(KEYS[2], me, now_ms + ARGV[7], ARGV[5], ARGV[6])
local mine, lost, locks = {}, {}, {}
local owned = tonumber(ARGV[8])
for i = 9, #ARGV do
  local id, lock = ARGV[i], KEYS[i - 6]
  local holder = lock and redis.call('GET', lock)
  if not lock or (holder == me and redis.call('PEXPIRE', lock, ttl) == 1) then
    mine[#mine + 1], locks[id] = id, lock
  elseif not holder and i - 8 <= owned and #redis.call('XPENDING', stream, group, id, id, 1, me) == 1 then
    redis.pcall('SET', lock, me, 'PX', ttl) -- refused at the memory limit; the entry stays ours meanwhile
    mine[#mine + 1], locks[id] = id, lock
  else
    lost[#lost + 1] = id
  end
end
if #mine > 0 then
  local command = {'XCLAIM', stream, group, me, 0}
  for _, id in ipairs(mine) do command[#command + 1] = id end
  for _, word in ipairs({'IDLE', ARGV[4], 'JUSTID'}) do command[#command + 1] = word end
  local refreshed = {}
  for _, id in ipairs(redis.call(unpack(command))) do refreshed[id] = true end
  for _, id in ipairs(mine) do
    if not refreshed[id] then -- acknowledged or deleted by somebody
      lost[#lost + 1] = id
      if locks[id] then redis.call('DEL', locks[id]) end
    end
  end
end
return lost
