-- Drops messages that the group has not been handed yet: queued -> dropped. Their deduplication keys are free again.
-- KEYS: 1 stream, 2 operation, 3.. deduplication key of each message that has one, in order
-- ARGV: 1 group, 2 drop only while the stream has at least that many entries, 3 TTL of the operation in s,
--       then per message: id, '1' = it has a deduplication key
-- Returns: 'id id ...' of those that were dropped; the others were handed out, or dropped, meanwhile.
-- Called twice: the second call gets the recorded answer. Otherwise a caller that lost a reply would drop the next ones as well.
-- include: shared/ids.lua
-- include: shared/group_info.lua
-- include: shared/entry_of.lua
local stream, key_index, dropped = KEYS[1], 3, {}
local done = redis.call('GET', KEYS[2])
if done then return done end
local info = redis.call('EXISTS', stream) == 1 and group_info(stream, ARGV[1])
local delivered = info and info['last-delivered-id'] or '0-0'
local least = tonumber(ARGV[2]) -- another producer may have made room meanwhile
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local key
  if ARGV[i + 1] == '1' then key, key_index = KEYS[key_index], key_index + 1 end
  local published = key and entry_of(key)
  local may_drop = least == 0 or redis.call('XLEN', stream) >= least
  if may_drop and is_smaller(delivered, id) and redis.call('XDEL', stream, id) == 1 then
    dropped[#dropped + 1] = id
    if published == id then redis.call('DEL', key) end
  end
end
local answer = table.concat(dropped, ' ')
if #dropped > 0 then redis.call('SET', KEYS[2], answer, 'EX', ARGV[3]) end
return answer
