-- Puts tasks whose time has come into their lanes: scheduled -> queued.
-- KEYS: 1 due, 2 bodies, 3 index, 4 lanes, 5.. streams of the lanes that are named
-- ARGV: 1 how many at most (fewer if they are large), 2 group, 3.. names of lanes
-- Returns: {how many were moved, lanes that others belong to and that were not named: name them and call again}
-- Called twice: the second call moves the next ones.
-- XADD before anything is removed: when the stream refuses, the task stays scheduled.
local call = redis.call
-- include: shared/now.lua
-- include: tasks/open_lane.lua
-- include: shared/pages.lua
local streams = {}
for i = 3, #ARGV do streams[ARGV[i]] = KEYS[2 + i] end
local moved, unknown, seen, bytes = 0, {}, {}, 0
for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, ARGV[1])) do
  if bytes >= ENOUGH then break end
  local lane, rest = string.match(call('HGET', KEYS[3], id) or '', '^%S+ (%S+)(.*)$')
  local packed = lane and streams[lane] and call('HGET', KEYS[2], id) -- the body last: it may be large
  if lane and not streams[lane] then
    if not seen[lane] then unknown[#unknown + 1] = lane end
    seen[lane] = true
  elseif not packed then
    call('ZREM', KEYS[1], id) -- cancelled by hand
    call('HDEL', KEYS[2], id)
  else
    local border = string.find(packed, '\0', 1, true)
    local kind, body = string.sub(packed, 1, border - 1), string.sub(packed, border + 1)
    open_lane(KEYS[4], lane, streams[lane], ARGV[2])
    local entry = call('XADD', streams[lane], '*', 'data', body, 'task_id', id, 'kind', kind)
    call('HSET', KEYS[3], id, entry .. ' ' .. lane .. rest)
    call('ZREM', KEYS[1], id)
    call('HDEL', KEYS[2], id)
    moved, bytes = moved + 1, bytes + #packed
  end
end
return {moved, unknown}
