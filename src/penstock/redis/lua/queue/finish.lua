-- Ends the life of one message of this consumer in a queue: pending -> gone, or recorded in a log.
-- KEYS: 1 stream, 2 attempts, then the log, if there is one, then the deduplication key of a message that came to nothing
-- ARGV: 1 group, 2 consumer, 3 id, 4 '0' = no log, '1' = a log, '2' = a log without whose record the message must stay,
--       5 how many records the log keeps (0 = all), 6.. further fields and values of the record
-- Returns: 1 = done, 2 = done, but the log refused its record, 0 = not pending (settled before), -1 = it belongs to another.
-- Called twice: the second call finds nothing pending and writes nothing.
-- A log that must be written comes before XACK, so that a message stays pending when the record is refused. One that need
-- not comes after it: at the memory limit a script may write what it likes once XACK was allowed, and a full server drains.
-- include: shared/discard.lua
-- include: shared/entry_of.lua
-- include: shared/kept_fields.lua
local stream, group, id, log = KEYS[1], ARGV[1], ARGV[3], ARGV[4] ~= '0' and KEYS[3]
local marker = KEYS[log and 4 or 3]
local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not entry then return 0 end
if entry[2] ~= ARGV[2] then return -1 end
local published = marker and entry_of(marker)

local record = log and function(call)
  local found = redis.call('XRANGE', stream, id, id)[1]
  local fields, cut = kept_fields(found and found[2] or {})
  if cut then fields[#fields + 1], fields[#fields + 2] = 'dlq_cut', cut end
  for i = 6, #ARGV do fields[#fields + 1] = ARGV[i] end
  if ARGV[5] == '0' then return call('XADD', log, '*', unpack(fields)) end
  return call('XADD', log, 'MAXLEN', ARGV[5], '*', unpack(fields))
end

if ARGV[4] == '2' then record(redis.call) end
redis.call('XACK', stream, group, id)
local answer = 1
if ARGV[4] == '1' then
  local reply = record(redis.pcall)
  if type(reply) == 'table' and reply.err then answer = 2 end
end
redis.call('HDEL', KEYS[2], id) -- a first delivery has attempts on record too, if its reply got lost
if published == id then redis.call('DEL', marker) end
discard(stream, id)
return answer
