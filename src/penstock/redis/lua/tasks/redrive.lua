-- Puts a dead task back into its lane: dead -> queued. Its error is not its result any more.
-- KEYS: 1 dead, 2 stream, 3 index, 4 done, 5 results, 6 counts, 7 lanes
-- ARGV: 1 id of the record, 2 name of the lane, 3 id of the task ('' = unknown), 4 kind, 5 group, 6.. fields and values of the
--       new entry
-- Returns: id of the new entry; 'gone' = the record was redriven or purged before; 'open' = the task is queued already;
--       'done' = it has a result that is no error; an error if there are too many lanes
-- Called twice: the second call finds the record gone and adds nothing.
-- XADD before XDEL: when the stream refuses, the record stays.
local call, counts = redis.call, KEYS[6]
-- include: tasks/stored_result.lua
-- include: tasks/count_kind.lua
-- include: tasks/open_lane.lua
if #call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 'gone' end
local id = ARGV[3]
local result, size
if id ~= '' then
  if call('HEXISTS', KEYS[3], id) == 1 then return 'open' end
  result = call('HGET', KEYS[4], id)
  if result then
    local status, _, results_in_entry = stored_result(KEYS[5], result, id)
    size = results_in_entry
    if status and status ~= 'error' then return 'done' end
  end
end
if not open_lane(KEYS[7], ARGV[2], KEYS[2], ARGV[5]) then return no_room(ARGV[2]) end
local entry = call('XADD', KEYS[2], '*', unpack(ARGV, 6))
if id ~= '' then
  call('HSET', KEYS[3], id, entry .. ' ' .. ARGV[2])
  if result then
    if size == 1 then call('XDEL', KEYS[5], result) end
    call('HDEL', KEYS[4], id)
  end
end
count_kind('redriven', ARGV[4], 1)
call('XDEL', KEYS[1], ARGV[1])
return entry
