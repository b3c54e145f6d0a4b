-- Counts the messages of a queue by their state, at one moment.
-- KEYS: 1 stream, 2 retries, 3 completed, 4 failed, 5 dead letters
-- ARGV: 1 group
-- Returns: {unread or -1 when only a walk through the stream could count them, handed out, of these waiting for a retry,
--       completed, failed, dead, last delivered id}
-- Called twice: reads only.
-- include: shared/group_info.lua
local function length(key) return redis.call('XLEN', key) end
local unread, pending, delivered = length(KEYS[1]), 0, '0-0'
if redis.call('EXISTS', KEYS[1]) == 1 then
  local info, groups = group_info(KEYS[1], ARGV[1])
  if info then
    pending, delivered = info['pending'], info['last-delivered-id']
    unread = groups == 1 and unread - pending or -1 -- others keep entries in the stream that this group is done with
  end
end
return {unread, pending, redis.call('ZCARD', KEYS[2]), length(KEYS[3]), length(KEYS[4]), length(KEYS[5]), delivered}
