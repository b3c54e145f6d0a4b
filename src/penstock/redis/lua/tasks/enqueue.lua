-- Adds tasks to the lanes of a queue, each id once: new -> queued, or new -> scheduled.
-- KEYS: 1 index, 2 done, 3 unique, 4 counts, 5 lanes, 6 due, 7 bodies, 8.. streams of the lanes that occur
-- ARGV: 1 group, 2 number of lanes that occur, 3.. their names, then per task: number of its lane (1 = first), when it is due
--       ('' = now, '+n' = in n ms, 'n' = at n ms since the epoch), id, unique text ('' = none), kind, body
-- Returns: for each task its own id, or the id of the open task that has the same unique text; an error if there are too many lanes
-- Called twice: a task whose id is open or has a result is not added again; the answers are the same.
-- XADD before the index: when the stream refuses (memory, type), the tasks before it in the call are known and stay.
local call = redis.call
local index, done, unique, counts, due, bodies = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7]
local group, lanes = ARGV[1], tonumber(ARGV[2])
local first = 3 + lanes
-- include: shared/now.lua

-- include: tasks/open_lane.lua
-- include: tasks/count_kind.lua
local wanted, answers, seen, added = {}, {}, {}, {}
for i = first, #ARGV, 6 do wanted[#wanted + 1] = ARGV[i + 2] end
if #wanted == 0 then return answers end
local open, finished = call('HMGET', index, unpack(wanted)), call('HMGET', done, unpack(wanted))
for lane = 1, lanes do
  if not open_lane(KEYS[5], ARGV[2 + lane], KEYS[7 + lane], group) then return no_room(ARGV[2 + lane]) end
end

local index_pairs, unique_pairs = {}, {}
local function flush()
  if #index_pairs > 0 then call('HSET', index, unpack(index_pairs)) end
  if #unique_pairs > 0 then call('HSET', unique, unpack(unique_pairs)) end
  for kind, count in pairs(added) do count_kind('added', kind, count) end
end

local function place(lane, when, id, kind, body)
  if when == '' then
    return redis.pcall('XADD', KEYS[7 + lane], '*', 'data', body, 'task_id', id, 'kind', kind)
  end
  local at = tonumber(when)
  if string.sub(when, 1, 1) == '+' then at = at + now_ms end
  local reply = redis.pcall('HSET', bodies, id, kind .. '\0' .. body)
  if type(reply) == 'table' and reply.err then return reply end
  call('ZADD', due, string.format('%.0f', at), id)
  return '-'
end

for n = 1, #wanted do
  local i = first + (n - 1) * 6
  local lane, id, text, kind = tonumber(ARGV[i]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local other = text ~= '' and (seen[text] or call('HGET', unique, text))
  if open[n] or finished[n] or seen['id ' .. id] then
    answers[n] = id
  elseif other then
    answers[n] = other
  else
    local entry = place(lane, ARGV[i + 1], id, kind, ARGV[i + 5])
    if type(entry) == 'table' and entry.err then
      flush()
      return entry
    end
    local value = entry .. ' ' .. ARGV[2 + lane]
    if text ~= '' then
      value = value .. ' ' .. text
      unique_pairs[#unique_pairs + 1], unique_pairs[#unique_pairs + 2] = text, id
      seen[text] = id
    end
    index_pairs[#index_pairs + 1], index_pairs[#index_pairs + 2] = id, value
    added[kind] = (added[kind] or 0) + 1
    seen['id ' .. id] = true
    answers[n] = id
  end
end
flush()
return answers
