-- Adds the shards of a topic to the load balancer stream, each once.
-- KEYS: 1 load balancer stream, 2 shards
-- ARGV: 1 field, then shard and value for each
-- Returns: how many were added
-- Called twice: finds all of them, adds nothing.
local added = 0
for i = 2, #ARGV, 2 do
  if not redis.call('HGET', KEYS[2], ARGV[i]) then
    local id = redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[i + 1])
    redis.call('HSET', KEYS[2], ARGV[i], id)
    added = added + 1
  end
end
return added
