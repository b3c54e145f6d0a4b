-- Creates the group if it does not exist: at its recorded position when it had one, else at the beginning of the stream.
-- KEYS: 1 stream, 2 position, 3 retries, 4 attempts
-- ARGV: 1 group, 2 consumer that gets the entries which were pending
-- Returns: the id after which the group reads, or '' when it exists.
-- Called twice: the second call finds the group and does nothing.
-- The record is 'last-delivered-id pending-id ...', or '(id' of the oldest pending entry when there were too many to list:
-- then what follows it is handed out again, for better twice than never.
-- What is not pending now will be read as new, and begins anew: a due time of before would take it from its reader.
-- include: shared/ids.lua
-- include: shared/group_info.lua
local stream, group = KEYS[1], ARGV[1]

local start, pending = '0-0', {}
local exists = redis.call('EXISTS', stream) == 1
-- Looked for before it is created: at the memory limit XGROUP CREATE is refused even when the group exists, and then no
-- consumer could start to drain the stream.
if exists and group_info(stream, group) then return '' end
local record = exists and redis.call('GET', KEYS[2])
if record then
  local oldest = string.match(record, '^%((.+)$')
  for id in string.gmatch(oldest and previous_id(oldest) or record, '%S+') do pending[#pending + 1] = id end
  start = table.remove(pending, 1)
  local last = as_table(redis.call('XINFO', 'STREAM', stream))['last-generated-id']
  -- A stream that was deleted and begun again with smaller ids: the record speaks of another one.
  if is_smaller(last, start) then start, pending = '0-0', {} end
end

-- Kept are the counts and due times of what is pending again: a hundred at most, however many there were.
local function kept(id) return {id, redis.call('ZSCORE', KEYS[3], id), redis.call('HGET', KEYS[4], id)} end
for n, id in ipairs(pending) do pending[n] = kept(id) end
redis.call('XGROUP', 'CREATE', stream, group, start, 'MKSTREAM')
for _, key in ipairs({KEYS[3], KEYS[4]}) do
  local reply = redis.pcall('UNLINK', key)
  if type(reply) == 'table' then redis.call('DEL', key) end -- a user who may not
end
for _, was in ipairs(pending) do
  local id, due, begun = unpack(was)
  -- FORCE passes over an id that is not in the stream any more.
  local claimed = redis.call('XCLAIM', stream, group, ARGV[2], 0, id, 'IDLE', 86400000, 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
  if #claimed == 1 and due then redis.call('ZADD', KEYS[3], due, id) end
  if #claimed == 1 and begun then redis.call('HSET', KEYS[4], id, begun) end
end
return start
