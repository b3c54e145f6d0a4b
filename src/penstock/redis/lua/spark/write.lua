-- Adds consecutive rows of one partition of a Spark write, once, however often and by whomever they are sent.
-- KEYS: 1 stream, 2 hash of the query: field 'epoch' = that of the newest run seen, 'p<partition>' = 'batch rows checksum',
--       how far the partition has come
-- ARGV: 1 partition, 2 epoch of the run (0 = runs are not distinguished), 3 batch, 4 rows of the partition before these,
--       5 checksum of those, 6 checksum with these, 7 TTL of the hash in s, 8 max_len (0 = none), 9 'reject' or
--       'drop_oldest', 10 number of rows, 11 layout of the rest:
--       'plain': payload, payload, ...
--       'full': per row: number of field arguments, field, value, ...
-- Returns: 'added dropped'; 'had' = all of them were there; 'at rows checksum' = some were there: send those behind;
--       'room rows' = only that many fit; 'fenced epoch' = a newer run writes; 'differs' = what was there are other rows;
--       'gap batch rows' = rows before these are missing. Only 'added' has written anything, and then all of it.
-- Called twice: says 'had'. Two attempts of a partition that send the same rows at the same time add each row once.
-- include: shared/room.lua
local call = redis.call
local stream, marks = KEYS[1], KEYS[2]
local field, epoch, batch, first = 'p' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local max_len, count = tonumber(ARGV[8]), tonumber(ARGV[10])

local known = call('HMGET', marks, 'epoch', field)
if epoch > 0 and known[1] and tonumber(known[1]) > epoch then return 'fenced ' .. known[1] end
local done_batch, done, checksum = -1, 0, '0'
if known[2] then
  local b, r, c = string.match(known[2], '^(%d+) (%d+) (%d+)$')
  done_batch, done, checksum = tonumber(b), tonumber(r), c
end
if done_batch > batch then return 'had' end
if done_batch < batch then done, checksum = 0, '0' end
if done < first then return 'gap ' .. done_batch .. ' ' .. done end
if done == first and checksum ~= ARGV[5] then return 'differs' end
if done == first + count and checksum ~= ARGV[6] then return 'differs' end
if done >= first + count then return 'had' end
if done > first then return 'at ' .. done .. ' ' .. checksum end

local length = length_with_room(stream, max_len > 0 and call('XLEN', stream) or 0, count, max_len)
if max_len > 0 and ARGV[9] == 'reject' and length + count > max_len then
  return 'room ' .. math.max(0, max_len - length)
end

if ARGV[11] == 'plain' then
  for i = 12, 11 + count do call('XADD', stream, '*', 'data', ARGV[i]) end
else
  local i = 12
  for _ = 1, count do
    local size = tonumber(ARGV[i])
    call('XADD', stream, '*', unpack(ARGV, i + 1, i + size))
    i = i + 1 + size
  end
end

local dropped = 0
if max_len > 0 and length + count > max_len then dropped = call('XTRIM', stream, 'MAXLEN', max_len) end
local mark = ARGV[3] .. ' ' .. string.format('%.0f', first + count) .. ' ' .. ARGV[6]
if epoch > 0 then
  call('HSET', marks, field, mark, 'epoch', ARGV[2])
else
  call('HSET', marks, field, mark)
end
call('EXPIRE', marks, ARGV[7])
return 'added ' .. dropped
