-- Adds a batch of messages, once, however often it is sent.
-- KEYS: 1 stream, 2 marker of the producer, 3.. one deduplication key for each message that has one, in order
-- ARGV: 1 sequence number of the batch, 2 marker TTL in s, 3 max_len (0 = none), 4 'reject' or 'drop_oldest',
--       5 number of messages, 6 layout of the rest:
--       'plain': payload, message id, payload, message id, ...
--       'full': per message: number of field arguments, deduplication window in ms (0 = none), field, value, ...
-- Returns: 'dropped answer answer ...'. An answer is the id, '=' .. id of the earlier entry for a duplicate, or '!' for a
--       message that found the stream full. 'dropped first..last' stands for ids that follow each other.
-- Called twice: a batch with the sequence number of the last one adds nothing and gets the recorded answers; an older
--       batch (a late copy of something answered long ago) is refused with STALEBATCH. So a producer sends one batch at a time.
-- include: shared/entry_of.lua
local call = redis.call
local stream, marker, sequence, max_len, count = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[5])

local last = call('GET', marker)
if last then
  local done = string.match(last, '^%d+')
  if done == sequence then return string.sub(last, #done + 2) end
  if tonumber(done) > tonumber(sequence) then
    return redis.error_reply('STALEBATCH batch ' .. sequence .. ' of this producer is older than ' .. done)
  end
end

local length = max_len > 0 and call('XLEN', stream) or 0
if count == 1 and (max_len == 0 or length < max_len) then
  -- A message that travels alone is waited for: nothing but what it needs.
  local key, answer, earlier = KEYS[3], nil, nil
  if ARGV[6] == 'plain' then
    answer = call('XADD', stream, '*', 'data', ARGV[7], 'message_id', ARGV[8])
  else
    earlier = key and entry_of(key)
    answer = earlier and '=' .. earlier or call('XADD', stream, '*', unpack(ARGV, 9))
    if key and not earlier then call('SET', key, answer, 'PX', ARGV[8]) end
  end
  answer = '0 ' .. answer
  call('SET', marker, sequence .. ' ' .. answer, 'EX', ARGV[2])
  return answer
end

-- include: shared/room.lua
length = length_with_room(stream, length, count, max_len)
local room = count
if max_len > 0 and ARGV[4] == 'reject' then room = max_len - length end

local answers, range = {}, nil
if ARGV[6] == 'plain' then
  -- Only the first and the last id are kept: nearly always the others follow from them, and a table of all costs a tenth more.
  local fits, first, last = math.max(0, math.min(count, room)), nil, nil
  for i = 7, 5 + 2 * fits, 2 do
    last = call('XADD', stream, '*', 'data', ARGV[i], 'message_id', ARGV[i + 1])
    first = first or last
  end
  local first_ms, first_seq = string.match(first or '', '^(%d+)-(%d+)$')
  local last_ms, last_seq = string.match(last or '', '^(%d+)-(%d+)$')
  if fits == count and first_ms == last_ms and tonumber(last_seq) - tonumber(first_seq) == count - 1 then
    range = first .. '..' .. last
  else
    if first then
      for n, entry in ipairs(call('XRANGE', stream, first, last)) do answers[n] = entry[1] end
    end
    for n = fits + 1, count do answers[n] = '!' end
  end
else
  local i, key_index = 7, 3
  for n = 1, count do
    local size, window = tonumber(ARGV[i]), ARGV[i + 1]
    local earlier = window ~= '0' and entry_of(KEYS[key_index])
    if earlier then
      answers[n] = '=' .. earlier
    elseif room <= 0 then
      answers[n] = '!'
    else
      answers[n] = call('XADD', stream, '*', unpack(ARGV, i + 2, i + 1 + size))
      room = room - 1
      if window ~= '0' then call('SET', KEYS[key_index], answers[n], 'PX', window) end
    end
    if window ~= '0' then key_index = key_index + 1 end
    i = i + 2 + size
  end
end

local dropped = 0
if max_len > 0 and ARGV[4] == 'drop_oldest' and length + count > max_len then
  dropped = call('XTRIM', stream, 'MAXLEN', max_len)
end
local answer = dropped .. ' ' .. (range or table.concat(answers, ' '))
call('SET', marker, sequence .. ' ' .. answer, 'EX', ARGV[2])
return answer
