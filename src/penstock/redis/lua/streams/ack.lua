-- Settles messages of this consumer as done: pending -> acknowledged.
-- KEYS: 1 stream, 2 attempts, 3 position, 4 worker
-- ARGV: 1 group, 2 consumer, 3 incarnation ('' = the name is unique anyway), 4 '1' = record the position,
--       5 '1' = forget attempts, 6 how many entries must be pending with this consumer if it lost none, or -1,
--       7 smallest id, 8 greatest id, 9.. ids
-- Returns: {acknowledged, {refused ids}}; refused = not pending with this consumer (settled before, or claimed by another).
--       {-1, {}} = another number is pending than expected: nothing was done, send it again without an expectation.
-- Called twice: the second call acknowledges nothing and refuses all.
-- No write before XACK, and XACK is allowed at the memory limit: a full server can be drained.
local stream, worker, group, me = KEYS[1], KEYS[4], ARGV[1], ARGV[2]
-- include: streams/fence.lua
local mine, first, refused = ARGV, 9, {}

if tonumber(ARGV[6]) >= 0 then
  -- Nobody but the consumer itself adds to its pending list: as long as that has the length it should have, nothing was
  -- taken away, and all ids are its own. That costs the same for one id and for a thousand.
  local pending = 0
  for _, consumer in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
    if consumer[1] == me then pending = tonumber(consumer[2]) end
  end
  if pending ~= tonumber(ARGV[6]) then return {-1, {}} end
else
  -- One range read for the batch costs a tenth of a look-up for each id. What it misses is looked up.
  local owned = {}
  mine, first = {}, 1
  for _, entry in ipairs(redis.call('XPENDING', stream, group, ARGV[7], ARGV[8], 2 * #ARGV + 100, me)) do
    owned[entry[1]] = true
  end
  for i = 9, #ARGV do
    local id = ARGV[i]
    if owned[id] or #redis.call('XPENDING', stream, group, id, id, 1, me) == 1 then
      mine[#mine + 1] = id
    else
      refused[#refused + 1] = id
    end
  end
end
local acked = 0
if #mine >= first then
  acked = redis.call('XACK', stream, group, unpack(mine, first))
  if ARGV[5] == '1' then redis.call('HDEL', KEYS[2], unpack(mine, first)) end
end
if ARGV[4] ~= '1' then return {acked, refused} end
-- include: shared/group_info.lua
local pending, record = redis.call('XPENDING', stream, group), nil
if pending[1] > 100 then
  record = '(' .. pending[2]
else
  record = group_info(stream, group)['last-delivered-id']
  if pending[1] > 0 then
    for _, entry in ipairs(redis.call('XPENDING', stream, group, '-', '+', 100)) do record = record .. ' ' .. entry[1] end
  end
end
-- pcall: without a write before it this may be refused at the memory limit, and it is only a record.
redis.pcall('SET', KEYS[3], record)
return {acked, refused}
