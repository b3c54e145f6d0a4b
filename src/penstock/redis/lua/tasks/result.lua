-- Stores a result by itself, without acknowledging the task: the first one for an id stays.
-- KEYS: 1 results, 2 done, 3 awaited, 4 notice of the task
-- ARGV: 1 id of the task, 2 kind, 3 status, 4 result
-- Returns: 1 = stored, 0 = another result had come first, and that is another one; 2 = this very result was there
-- Called twice: the second call stores nothing.
local call = redis.call
local results, done, awaited = KEYS[1], KEYS[2], KEYS[3]
-- include: tasks/store_results.lua
-- include: tasks/stored_result.lua
local known = known_results({ARGV[1]})[1]
if known then
  local _, body = stored_result(results, known, ARGV[1])
  return body == ARGV[4] and 2 or 0
end
store_results({{ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[4]}})
return 1
