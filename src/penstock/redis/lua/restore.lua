-- Creates the group if it does not exist: at its recorded position when it had one, else at the beginning of the stream.
-- KEYS: 1 stream, 2 position, 3 retries, 4 attempts
-- ARGV: 1 group, 2 consumer that gets the entries which were pending
-- Returns: the id after which the group reads, or '' when it exists.
-- Called twice: the second call finds the group and does nothing.
-- The record is 'last-delivered-id pending-id ...', or '(id' of the oldest pending entry when there were too many to list:
-- then what follows it is handed out again, for better twice than never.
-- What is not pending now will be read as new, and begins anew: a due time of before would take it from its reader.
-- include: ids.lua
local stream, group = KEYS[1], ARGV[1]

local start, pending = '0-0', {}
local exists = redis.call('EXISTS', stream) == 1
-- Looked for before it is created: at the memory limit XGROUP CREATE is refused even when the group exists, and then no
-- consumer could start to drain the stream.
for _, info in ipairs(exists and redis.call('XINFO', 'GROUPS', stream) or {}) do
  if info[2] == group then return '' end
end
local record = exists and redis.call('GET', KEYS[2])
if record then
  local oldest = string.match(record, '^%((.+)$')
  for id in string.gmatch(oldest and previous_id(oldest) or record, '%S+') do pending[#pending + 1] = id end
  start = table.remove(pending, 1)
  local info = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    -- A stream that was deleted and begun again with smaller ids: the record speaks of another one.
    if info[i] == 'last-generated-id' and is_smaller(info[i + 1], start) then start, pending = '0-0', {} end
  end
end

redis.call('XGROUP', 'CREATE', stream, group, start, 'MKSTREAM')
for _, id in ipairs(pending) do
  if #redis.call('XRANGE', stream, id, id) == 1 then
    redis.call('XCLAIM', stream, group, ARGV[2], 0, id, 'IDLE', 86400000, 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
  end
end
local function is_pending(id) return #redis.call('XPENDING', stream, group, id, id, 1) == 1 end
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  if not is_pending(id) then redis.call('ZREM', KEYS[3], id) end
end
for _, id in ipairs(redis.call('HKEYS', KEYS[4])) do
  if not is_pending(id) then redis.call('HDEL', KEYS[4], id) end
end
return start
