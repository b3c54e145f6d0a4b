-- Moves messages of a queue of redis-message-queue into a stream: waiting or abandoned there -> queued here.
-- KEYS: 1 list, 2 stream, of the old leases: 3 deadlines, 4 tokens, 5 delivery counts, of the old claims: 6 results by
--       token, 7 results by claim, 8 claims by token; then per message: old and new deduplication key, and the result of
--       its claim if it has one
-- ARGV: 1 '1' = messages are only taken when their lease has run out, 2 '1' = and when none is recorded,
--       3 how far from its end the list is searched, then per message: stored value, token of its lease ('' = none),
--       claim ('' = none), '1' = its claim has a result, deduplication key, number of field arguments, field, value, ...
-- Returns: per message 1 = moved, 4 = moved with its deduplication key, 0 = not in the list any more, 2 = under a lease,
--       3 = taken without a lease.
-- Called twice: the second call finds the messages gone from the list and adds nothing.
-- XADD before LREM: when the stream refuses, the message stays where it is.
-- include: queue/move_marker.lua
local call = redis.call
local list, stream = KEYS[1], KEYS[2]
local clock = call('TIME')
local now_ms = clock[1] * 1000 + clock[2] / 1000

for i, kind in ipairs({'list', 'stream', 'zset', 'hash', 'hash', 'hash', 'hash', 'hash'}) do
  local found = call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= kind then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. found .. ' and not a ' .. kind)
  end
end

local function held(stored, token)
  local deadline = call('ZSCORE', KEYS[3], stored)
  if not deadline then return ARGV[2] ~= '1' and 3 end
  return (tonumber(deadline) > now_ms or (call('HGET', KEYS[4], stored) or '') ~= token) and 2
end

local function forget(stored, token, claim)
  call('ZREM', KEYS[3], stored)
  call('HDEL', KEYS[4], stored)
  call('HDEL', KEYS[5], stored)
  call('HDEL', KEYS[6], token)
  call('HDEL', KEYS[7], claim)
  call('HDEL', KEYS[8], token, stored)
end

local answers, key, i = {}, 9, 4
while i <= #ARGV do
  local stored, token, claim, has_result, size = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3] == '1', ARGV[i + 5]
  local old, new = KEYS[key], KEYS[key + 1]
  local answer = 0
  if call('LPOS', list, stored, 'RANK', -1, 'MAXLEN', ARGV[3]) then
    answer = ARGV[1] == '1' and held(stored, token) or 1
  end
  if answer == 1 then
    local fields = {unpack(ARGV, i + 6, i + 5 + size)}
    if call('EXISTS', old) == 1 then
      fields[#fields + 1] = 'dedup_key'
      fields[#fields + 1] = ARGV[i + 4]
    end
    local id = call('XADD', stream, '*', unpack(fields))
    call('LREM', list, -1, stored)
    answer = move_marker(old, new, id) and 4 or 1
    forget(stored, token, claim)
    if has_result then call('DEL', KEYS[key + 2]) end
  end
  answers[#answers + 1] = answer
  key = key + (has_result and 3 or 2)
  i = i + 6 + size
end
return answers
