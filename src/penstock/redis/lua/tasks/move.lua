-- Moves tasks of this consumer to the lanes of workers that can do them: pending -> queued elsewhere. Counts stay.
-- KEYS: 1 stream, 2 attempts, 3 retries, 4 suspects, 5 index, 6 lanes, 7.. streams of the lanes that occur
-- ARGV: 1 group, 2 consumer, 3 number of lanes that occur, 4.. their names, then per task: id of the entry, id of the task,
--       number of its lane, runs before this one
-- Returns: {how many were moved, how many were examined: the others are left to the next call, because the tasks are large,
--       {entries that stay pending here, because there are too many lanes}}
-- Called twice: the second call finds nothing pending.
-- An entry with more fields than a copy has room for is moved without some of them, and says so in the field dlq_cut.
-- XADD before XACK: when the other stream refuses, the task stays pending here.
-- include: shared/kept_fields.lua
-- include: shared/pages.lua
local call = redis.call
local stream, group, me, lanes = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
-- include: tasks/open_lane.lua
local is_open, refused = {}, {}
for lane = 1, lanes do is_open[lane] = open_lane(KEYS[6], ARGV[3 + lane], KEYS[6 + lane], group) end
local moved, examined, bytes = 0, 0, 0
for i = 4 + lanes, #ARGV, 4 do
  if bytes >= ENOUGH then break end
  examined = examined + 1
  local entry, id, lane = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local row = call('XRANGE', stream, entry, entry)[1]
  if not is_open[lane] then
    refused[#refused + 1] = entry
  elseif row and #call('XPENDING', stream, group, entry, entry, 1, me) == 1 then
    bytes = bytes + weight(row)
    local fields = {}
    local kept, cut = kept_fields(row[2])
    for n = 1, #kept, 2 do
      if kept[n] ~= 'attempts' then
        fields[#fields + 1] = kept[n]
        fields[#fields + 1] = kept[n + 1]
      end
    end
    if cut then fields[#fields + 1], fields[#fields + 2] = 'dlq_cut', cut end
    if ARGV[i + 3] ~= '0' then
      fields[#fields + 1] = 'attempts'
      fields[#fields + 1] = ARGV[i + 3]
    end
    local new = call('XADD', KEYS[6 + lane], '*', unpack(fields))
    call('XACK', stream, group, entry)
    call('HDEL', KEYS[2], entry)
    call('ZREM', KEYS[3], entry)
    call('SREM', KEYS[4], entry)
    local known = call('HGET', KEYS[5], id)
    if known and string.match(known, '^%S+') == entry then
      call('HSET', KEYS[5], id, new .. ' ' .. ARGV[3 + lane] .. (string.match(known, '^%S+ %S+( .*)$') or ''))
    end
    moved = moved + 1
  end
end
return {moved, examined, refused}
