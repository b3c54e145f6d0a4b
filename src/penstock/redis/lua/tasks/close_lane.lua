-- Removes a lane from the list if it is empty and no worker reads it: empty -> gone.
-- KEYS: 1 lanes, 2 stream, 3 retries, 4 attempts, 5 suspects, 6 position
-- ARGV: 1 name of the lane, 2 group
-- Returns: 1 = gone, 0 = it stays: it has a task, a worker, or another group
-- Called twice: the second call finds nothing.
-- In one step with all that could put a task into it: those list the lane and create the group in theirs.
-- include: shared/group_info.lua
local call = redis.call
if call('EXISTS', KEYS[2]) == 1 then
  if call('XLEN', KEYS[2]) > 0 then return 0 end
  for _, group in ipairs(call('XINFO', 'GROUPS', KEYS[2])) do
    local info = as_table(group)
    if info['name'] ~= ARGV[2] or info['pending'] > 0 or info['consumers'] > 0 then return 0 end
  end
end
call('DEL', unpack(KEYS, 2))
return call('SREM', KEYS[1], ARGV[1])
