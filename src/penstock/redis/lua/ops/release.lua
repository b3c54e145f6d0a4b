-- Takes a data stream from its owner: owned -> waiting for an owner. Entry and lock leave the owner's name together: else
-- its next heartbeat would extend the lock, or take the stream up again as after a lock that ran out unnoticed.
-- KEYS: 1 load balancer stream, 2 lock (absent in a cluster, where it is given up after this)
-- ARGV: 1 group, 2 owner, 3 entry id, 4 consumer under whose name the entry waits, 5 idle ms to give to it
-- Returns: 1 = released, 0 = the owner does not hold the lock any more
-- Called twice: finds the lock gone and the entry waiting, and returns 1 again.
-- include: shared/run_out.lua
local stream, lock, group, owner, id = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
if lock and redis.call('GET', lock) ~= owner then
  local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
  return entry and entry[2] == ARGV[4] and 1 or 0
end
redis.call('XCLAIM', stream, group, ARGV[4], 0, id, 'IDLE', ARGV[5], 'JUSTID')
if lock then run_out(lock, ARGV[4]) end
return 1
