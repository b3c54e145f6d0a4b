-- Drops messages that the group has not been handed yet: queued -> dropped. Their deduplication keys are free again.
-- KEYS: 1 stream, 2.. deduplication key of each message that has one, in order
-- ARGV: 1 group, 2 drop only while the stream has at least so many entries, then per message: id, '1' = it has a
--       deduplication key
-- Returns: ids that were dropped; the others were handed out, or dropped, meanwhile.
-- Called twice: the second call finds them gone and drops nothing.
-- include: needed.lua
local stream, key_index, dropped = KEYS[1], 2, {}
local delivered = '0-0'
for _, info in ipairs(redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'GROUPS', stream) or {}) do
  if info[2] == ARGV[1] then
    for i = 3, #info, 2 do
      if info[i] == 'last-delivered-id' then delivered = info[i + 1] end
    end
  end
end
local least = tonumber(ARGV[2]) -- another producer may have made room meanwhile
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local key
  if ARGV[i + 1] == '1' then key, key_index = KEYS[key_index], key_index + 1 end
  local may_drop = least == 0 or redis.call('XLEN', stream) >= least
  if may_drop and is_smaller(delivered, id) and redis.call('XDEL', stream, id) == 1 then
    dropped[#dropped + 1] = id
    if key and redis.call('GET', key) == id then redis.call('DEL', key) end
  end
end
return dropped
