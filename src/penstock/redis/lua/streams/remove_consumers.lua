-- Removes consumers that hold nothing and were silent for long. A consumer with pending entries is never removed:
-- the server would drop its pending list and the messages with it.
-- KEYS: 1 stream
-- ARGV: 1 group, 2 consumer that asks, 3 minimum silence in ms
-- Returns: {names removed}
-- Called twice: the second call finds none.
-- include: shared/group_info.lua
local removed = {}
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local info = as_table(consumer)
  if info['pending'] == 0 and info['idle'] >= tonumber(ARGV[3]) and info['name'] ~= ARGV[2] then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info['name'])
    removed[#removed + 1] = info['name']
  end
end
return removed
