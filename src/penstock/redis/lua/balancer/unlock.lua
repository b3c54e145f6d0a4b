-- Gives up the lock of one data stream where it lies in another slot than the load balancer stream.
-- KEYS: 1 lock
-- ARGV: 1 consumer, 2 '1' = by running out, which tells the peers, '0' = by deleting it
-- Returns: 1 = done, 0 = nobody held it, -1 = another consumer holds it
-- Called twice: finds nothing.
local holder = redis.call('GET', KEYS[1])
if not holder then return 0 end
if holder ~= ARGV[1] then return -1 end
if ARGV[2] == '1' then
  redis.call('PEXPIRE', KEYS[1], 1)
  -- It deletes a lock whose millisecond is over by then, and tells nobody. SET does not look.
  if redis.call('EXISTS', KEYS[1]) == 0 then redis.pcall('SET', KEYS[1], ARGV[1], 'PX', 1) end
else
  redis.call('DEL', KEYS[1])
end
return 1
