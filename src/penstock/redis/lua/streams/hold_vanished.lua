-- Keeps messages whose entries vanished under their handlers with their holder: their leases cannot be renewed, for XCLAIM
-- drops what is gone. Until a time that is pushed on they count as waiting, which recover.lua passes over.
-- KEYS: 1 stream, 2 retries
-- ARGV: 1 group, 2 consumer, 3 for how many ms, then per message: id, '1' = its handler runs, '0' = it is settled
-- Returns: {refused ids}: handlers run that do not hold their messages any more
-- Called twice: the time starts anew.
local stream, retries, group, me = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
-- include: shared/now.lua
local until_ms = string.format('%.0f', now_ms + ARGV[3])
local refused = {}
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if not entry then
    redis.call('ZREM', retries, id)
  elseif ARGV[i + 1] == '1' and entry[2] == me then
    redis.call('ZADD', retries, until_ms, id)
  end
  if ARGV[i + 1] == '1' and (not entry or entry[2] ~= me) then refused[#refused + 1] = id end
end
return refused
