-- Included by scripts that add tasks to lanes. open_lane(lanes, name, stream, group) lists the lane, and creates the group of
-- one that is new: a lane that is listed and has no group has lost it.
local function open_lane(lanes, name, stream, group)
  if redis.call('SADD', lanes, name) == 0 then return end
  redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- refused at the memory limit, as the task will be
end
