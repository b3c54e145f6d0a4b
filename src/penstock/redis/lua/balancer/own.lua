-- Makes this consumer the owner of a data stream: pending -> owned.
-- KEYS: 1 load balancer stream, 2 owners, 3 token, 4 peers, 5 lock (absent in a cluster, where it is in another slot)
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 data stream, 5 TTL of the lock in ms, 6 '' = this consumer has just read the
--       entry, else the ms for which its holder must have been silent, 7 deliveries after which it is given up (0 = never),
--       8 streams owned before this, 9 capacity, 10 ms for which this consumer counts as alive
-- Returns: {'own', token, deliveries, fields or nil} | {'held', consumer} | {'queued', entry id that comes first} |
--          {'exhausted', deliveries} | {'gone'}
-- Called twice: the lock holds this consumer already; it gets a newer token.
-- The lock is examined first, so that the pending entry of a live owner stays where it is. XCLAIM sets the idle time to
-- 0 before the lock begins: when the lock has run out, the entry has been idle for as long as a Go peer demands.
-- include: balancer/peers.lua
local stream, owners, group, me, id, name = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not entry then return {'gone'} end
local holder = KEYS[5] and redis.call('GET', KEYS[5])
if holder and holder ~= me then return {'held', holder} end
if ARGV[6] == '' and entry[2] ~= me then return {'held', entry[2]} end
local first = redis.call('HGET', owners, name)
if first and first ~= id and #redis.call('XPENDING', stream, group, first, first, 1) == 1 then
  return {'queued', first}
end
local deliveries, fields = entry[4], nil
if ARGV[6] ~= '' then
  local limit = tonumber(ARGV[7])
  if entry[2] ~= me and entry[3] < tonumber(ARGV[6]) then return {'held', entry[2]} end
  if limit > 0 and deliveries >= limit then return {'exhausted', deliveries} end
  local claimed = redis.call('XCLAIM', stream, group, me, 0, id)[1]
  if not claimed or not claimed[2] then -- deleted while it was pending
    redis.call('XACK', stream, group, id)
    if first == id then redis.call('HDEL', owners, name) end
    return {'gone'}
  end
  deliveries, fields = deliveries + 1, claimed[2]
end
redis.call('HSET', owners, name, id)
local token = redis.call('INCR', KEYS[3])
if KEYS[5] then redis.call('SET', KEYS[5], me, 'PX', ARGV[5]) end
register(KEYS[4], me, now_ms + ARGV[10], ARGV[8] + 1, ARGV[9])
return {'own', token, deliveries, fields}
