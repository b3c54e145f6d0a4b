-- Included by scripts that hand a pending entry to this consumer again.
-- claim(entry, out, missing): entry is one row of XPENDING {id, owner, idle, count}. Appends {id, count, attempts, fields}
-- to out. The delivery count stays: it is raised by begin.lua when a handler really starts.
-- is_enough() returns whether claiming more in this call would block the server: claimed entries are read.
-- An entry whose body is gone is recorded in the dead letters and leaves the pending list (6.2 keeps it there for ever). Without
-- a key of dead letters it is only reported: the caller settles it.
-- XADD before XACK; when the dead-letter stream refuses (memory, type), the entry stays pending.
local stream, retries, attempts, dead_letters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, me = ARGV[1], ARGV[2]
-- include: shared/now.lua
-- include: shared/dead_letter_record.lua
-- include: shared/pages.lua
local claimed_bytes = 0
local function is_enough() return claimed_bytes >= ENOUGH end

local function dead_letter_missing(entry, missing)
  if not dead_letters then
    missing[#missing + 1] = entry[1]
    return
  end
  local record = dead_letter_record({}, entry, 'missing', '', 'the entry was trimmed or deleted while it was pending',
    redis.call('HGET', attempts, entry[1]) or '0')
  local reply = redis.pcall('XADD', dead_letters, '*', unpack(record))
  if type(reply) == 'table' and reply.err then return end
  redis.call('XACK', stream, group, entry[1])
  redis.call('HDEL', attempts, entry[1])
  redis.call('ZREM', retries, entry[1])
  missing[#missing + 1] = entry[1]
end

local function claim(entry, out, missing)
  local id, count = entry[1], entry[4]
  local found = redis.call('XRANGE', stream, id, id)
  if #found == 0 then return dead_letter_missing(entry, missing) end
  redis.call('XCLAIM', stream, group, me, 0, id, 'RETRYCOUNT', count, 'JUSTID')
  claimed_bytes = claimed_bytes + weight(found[1])
  out[#out + 1] = {id, count, tonumber(redis.call('HGET', attempts, id) or count), found[1][2]}
end
