-- Adds the shards of a topic to the load balancer stream, each once.
-- KEYS: 1 load balancer stream, 2 shards
-- ARGV: 1 field, 2 number of shards, then shard and value for each
-- Returns: how many were added, or minus the number of shards that the topic has, if that is another one
-- Called twice: finds all of them, adds nothing. A shard whose entry is gone, given up or deleted, is added again.
local known = redis.call('HLEN', KEYS[2])
if known > 0 and known ~= tonumber(ARGV[2]) then return -known end
local added = 0
for i = 3, #ARGV, 2 do
  local id = redis.call('HGET', KEYS[2], ARGV[i])
  if not id or #redis.call('XRANGE', KEYS[1], id, id) == 0 then
    redis.call('HSET', KEYS[2], ARGV[i], redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[i + 1]))
    added = added + 1
  end
end
return added
