-- Counts the messages of a queue by their state, at one moment.
-- KEYS: 1 stream, 2 retries, 3 completed, 4 failed, 5 dead letters
-- ARGV: 1 group
-- Returns: {unread or -1 when only a walk through the stream would tell, handed out, of these waiting for a retry,
--       completed, failed, dead, last delivered id}
-- Called twice: reads only.
local function length(key) return redis.call('XLEN', key) end
local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
local unread, pending, delivered = length(KEYS[1]), 0, '0-0'
for _, group in ipairs(groups) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  if info['name'] == ARGV[1] then
    pending, delivered = info['pending'], info['last-delivered-id']
    unread = #groups == 1 and unread - pending or -1 -- others keep entries in the stream that this group is done with
  end
end
return {unread, pending, redis.call('ZCARD', KEYS[2]), length(KEYS[3]), length(KEYS[4]), length(KEYS[5]), delivered}
