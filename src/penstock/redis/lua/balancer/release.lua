-- Hands data streams over: owned -> waiting for an owner. The locks expire immediately, which notifies the peers.
-- KEYS: 1 load balancer stream, 2.. locks (absent in a cluster, where they are given up after this)
-- ARGV: 1 group, 2 consumer, 3 idle ms to give to the entries, 4.. entry ids in the order of the locks
-- Returns: {1 = released, 0 = not this consumer's, for each}
-- Called twice: the locks have run out; entries that nobody took are released again.
-- include: shared/run_out.lua
local stream, group, me, released = KEYS[1], ARGV[1], ARGV[2], {}
for i = 4, #ARGV do
  local id, lock = ARGV[i], KEYS[i - 2]
  local holder = lock and redis.call('GET', lock)
  local is_mine = holder == me
  if not holder then is_mine = #redis.call('XPENDING', stream, group, id, id, 1, me) == 1 end
  if is_mine then
    redis.call('XCLAIM', stream, group, me, 0, id, 'IDLE', ARGV[3], 'JUSTID')
    if lock then run_out(lock, me) end
  end
  released[i - 3] = is_mine and 1 or 0
end
return released
