-- Stores the results of tasks of this consumer and acknowledges them, in one step: pending -> done.
-- KEYS: 1 stream of the lane, 2 attempts, 3 suspects, 4 results, 5 done, 6 awaited, 7 index, 8 unique, 9 counts,
--       10.. notice of each task
-- ARGV: 1 group, 2 consumer, 3 '1' = some were handed out before, 4 smallest id, 5 greatest id,
--       then per task: id of the entry, id of the task, kind, status, result
-- Returns: for each task 1 = stored and acknowledged, 2 = acknowledged, another result had come first, or the task is open in
--       another entry; 0 = not pending with this consumer (settled before, or claimed by another)
-- Called twice: the second call stores nothing and answers 0.
-- The results come first: when the stream refuses them (memory, type), the tasks stay pending.
local call = redis.call
local stream, results, done, awaited, index, unique = KEYS[1], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, me, counts = ARGV[1], ARGV[2], KEYS[9]
-- include: tasks/store_results.lua
-- include: tasks/forget_tasks.lua
-- include: tasks/count_kind.lua
local owned = {}
for _, entry in ipairs(call('XPENDING', stream, group, ARGV[4], ARGV[5], 2 * #ARGV + 100, me)) do owned[entry[1]] = true end

local answers, ids, entries, kinds, items = {}, {}, {}, {}, {}
for i = 6, #ARGV, 5 do
  local n, entry = (i - 1) / 5, ARGV[i]
  if owned[entry] or #call('XPENDING', stream, group, entry, entry, 1, me) == 1 then
    owned[entry] = nil -- named twice in one call, the second is refused
    answers[n] = 1
    ids[#ids + 1], entries[#entries + 1], kinds[#kinds + 1] = ARGV[i + 1], entry, ARGV[i + 2]
    items[#items + 1] = {ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], KEYS[9 + n], n}
  else
    answers[n] = 0
  end
end
if #ids == 0 then return answers end
local new, seen, open = {}, {}, call('HMGET', index, unpack(ids))
for n, known in ipairs(known_results(ids)) do
  if known or seen[ids[n]] or is_open_elsewhere(open[n], entries[n]) then
    answers[items[n][6]] = 2
  else
    new[#new + 1], seen[ids[n]] = items[n], true
  end
end
store_results(new)
call('XACK', stream, group, unpack(entries))
if ARGV[3] == '1' then
  call('HDEL', KEYS[2], unpack(entries))
  call('SREM', KEYS[3], unpack(entries))
end
forget_tasks(ids, entries, open)
local totals = {}
for _, kind in ipairs(kinds) do totals[kind] = (totals[kind] or 0) + 1 end
for kind, count in pairs(totals) do count_kind('acked', kind, count) end
return answers
