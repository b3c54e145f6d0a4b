-- Puts tasks whose time has come into their lanes: scheduled -> queued. Those of schedules that are paused it removes instead.
-- KEYS: 1 due, 2 bodies, 3 index, 4 lanes, 5 paused, 6 unique, 7 counts, 8.. streams of the lanes that are named
-- ARGV: 1 how many at most (fewer if they are large), 2 group, 3.. names of lanes
-- Returns: {how many were moved, lanes that others belong to and that were not named: name them and call again}
-- Called twice: the second call moves the next ones.
-- XADD before anything is removed: when the stream refuses, the task stays scheduled.
local call = redis.call
local index, paused, unique, counts = KEYS[3], KEYS[5], KEYS[6], KEYS[7]
-- include: shared/now.lua
-- include: tasks/open_lane.lua
-- include: tasks/count_kind.lua
-- include: shared/pages.lua
local streams = {}
for i = 3, #ARGV do streams[ARGV[i]] = KEYS[5 + i] end

-- A schedule gives its tasks a unique text that is their id; a task that another program gave such an id has another text, or none.
local function is_paused(id, unique_text)
  local schedule = unique_text == id and string.match(id, '^cron%.(.+)%.')
  return schedule and call('HEXISTS', paused, schedule) == 1
end

local function remove(id)
  call('ZREM', KEYS[1], id)
  call('HDEL', KEYS[2], id)
end

local moved, unknown, seen, bytes = 0, {}, {}, 0
for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, ARGV[1])) do
  if bytes >= ENOUGH then break end
  local lane, rest = string.match(call('HGET', index, id) or '', '^%S+ (%S+)(.*)$')
  local skips = lane and is_paused(id, string.sub(rest, 2))
  local packed = lane and (skips or streams[lane]) and call('HGET', KEYS[2], id) -- the body last: it may be large
  if lane and not skips and not streams[lane] then
    if not seen[lane] then unknown[#unknown + 1] = lane end
    seen[lane] = true
  elseif not packed then
    remove(id) -- cancelled by hand
  else
    local border = string.find(packed, '\0', 1, true)
    local kind, body = string.sub(packed, 1, border - 1), string.sub(packed, border + 1)
    if skips then
      call('HDEL', index, id)
      if call('HGET', unique, id) == id then call('HDEL', unique, id) end
      count_kind('added', kind, -1)
    else
      open_lane(KEYS[4], lane, streams[lane], ARGV[2], true) -- there was room when the task was added
      local entry = call('XADD', streams[lane], '*', 'data', body, 'task_id', id, 'kind', kind)
      call('HSET', index, id, entry .. ' ' .. lane .. rest)
      moved = moved + 1
    end
    remove(id)
    bytes = bytes + #packed
  end
end
return {moved, unknown}
