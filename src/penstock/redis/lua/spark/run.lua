-- Makes a run of a Spark query the newest one, unless a newer one is known.
-- KEYS: 1 hash of the query: field 'epoch' = that of the newest run seen, 'run:<id>' = that of the run
-- ARGV: 1 id of the run, 2 TTL of the hash in s
-- Returns: 'run epoch', or 'fenced epoch' with that of the newer run. An epoch is the time at which the run was first
--       seen, in microseconds: it rises even if the hash was lost in between.
-- Called twice: the run keeps its epoch.
local call = redis.call
local field = 'run:' .. ARGV[1]
local known = call('HMGET', KEYS[1], 'epoch', field)
local newest, own = known[1], known[2]
if not own then
  local now = call('TIME')
  own = tonumber(now[1]) * 1000000 + tonumber(now[2])
  if newest and own <= tonumber(newest) then own = tonumber(newest) + 1 end
  own = string.format('%.0f', own)
  newest = own
  call('HSET', KEYS[1], field, own, 'epoch', own)
end
call('EXPIRE', KEYS[1], ARGV[2])
if tonumber(newest) > tonumber(own) then return 'fenced ' .. newest end
return 'run ' .. own
