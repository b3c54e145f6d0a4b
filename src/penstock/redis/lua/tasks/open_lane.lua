-- Included by scripts that add tasks to lanes. open_lane(lanes, name, stream, group, must) lists the lane, and creates the group
-- of one that is new: a lane that is listed and has no group has lost it. Returns whether it is listed: writers choose lanes
-- for capabilities and kinds freely, and every worker looks at all of them, so beyond a number of lanes no new one is opened
-- unless it `must` be.
local MOST_LANES = 1000

local function open_lane(lanes, name, stream, group, must)
  local is_limited = not must and string.find(name, ':', 1, true) -- not one of the three priorities
  if is_limited and redis.call('SCARD', lanes) >= MOST_LANES and redis.call('SISMEMBER', lanes, name) == 0 then return false end
  if redis.call('SADD', lanes, name) == 1 then
    redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- refused at the memory limit, as the task will be
  end
  return true
end

local function no_room(name)
  return redis.error_reply('LANESFULL the queue has ' .. MOST_LANES .. ' lanes and opens none for ' .. name
    .. '; run or purge the tasks that no worker can do')
end
