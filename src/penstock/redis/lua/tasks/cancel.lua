-- Removes a task that no worker holds: scheduled, queued or waiting -> gone.
-- KEYS: 1 index, 2 unique, 3 counts, 4 due, 5 bodies, 6 stream of its lane, 7 retries, 8 attempts
-- ARGV: 1 group, 2 id, 3 name of the lane, 4 kind
-- Returns: 'cancelled'; 'running' = a worker has it; 'moved' = it is in another lane by now; 'gone' = it is not open
-- Called twice: the second call finds it gone.
local call, index, counts, stream, retries = redis.call, KEYS[1], KEYS[3], KEYS[6], KEYS[7]
-- include: tasks/count_kind.lua
local known = call('HGET', index, ARGV[2])
if not known then return 'gone' end
local entry, lane, text = string.match(known, '^(%S+) (%S+) ?(.*)$')
if lane ~= ARGV[3] then return 'moved' end
if entry == '-' then
  call('ZREM', KEYS[4], ARGV[2])
  call('HDEL', KEYS[5], ARGV[2])
else
  local pending = redis.pcall('XPENDING', stream, ARGV[1], entry, entry, 1) -- an error if the lane was never read
  if pending[1] and not call('ZSCORE', retries, entry) then return 'running' end
  if pending[1] then call('XACK', stream, ARGV[1], entry) end
  call('ZREM', retries, entry)
  call('HDEL', KEYS[8], entry)
  call('XDEL', stream, entry)
end
call('HDEL', index, ARGV[2])
if text ~= '' and call('HGET', KEYS[2], text) == ARGV[2] then call('HDEL', KEYS[2], text) end
count_kind('added', ARGV[4], -1)
return 'cancelled'
