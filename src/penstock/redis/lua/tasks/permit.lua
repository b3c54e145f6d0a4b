-- Gives the permit of a task back, and makes the next task that waits for one due.
-- KEYS: 1 permits, 2 waiting, 3.. retries of the lanes that are named
-- ARGV: 1 id of the task, 2.. names of lanes
-- Returns: how many tasks are due now, or the name of the lane of the one that waits: name it and call again
-- Called twice: the second call gives nothing back.
-- A hint that saves time: without it the permit is found free when the next task asks.
local call = redis.call
-- include: tasks/clear_foreign.lua
if clear_foreign(KEYS[1], redis.pcall('HLEN', KEYS[1])) or call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
clear_foreign(KEYS[2], redis.pcall('ZCARD', KEYS[2]))
local retries = {}
for i = 2, #ARGV do retries[ARGV[i]] = KEYS[1 + i] end
-- include: shared/now.lua
while true do
  local place = call('ZRANGE', KEYS[2], 0, 0)[1]
  local lane, entry = string.match(place or '', '^(%S+) (%S+)$')
  if lane and not retries[lane] then return lane end
  local is_waiting = lane and call('ZSCORE', retries[lane], entry)
  if place then call('ZREM', KEYS[2], place) end
  if is_waiting then call('ZADD', retries[lane], string.format('%.0f', now_ms), entry) end
  if is_waiting or not place then
    call('HDEL', KEYS[1], ARGV[1])
    return is_waiting and 1 or 0
  end
end
