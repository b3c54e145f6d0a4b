-- Gives the permit of a task back, and makes the next task that waits for one due.
-- KEYS: 1 permits, 2 waiting, 3.. retries of the lanes
-- ARGV: 1 id of the task, 2.. names of the lanes
-- Returns: how many tasks are due now
-- Called twice: the second call gives nothing back.
-- A hint that saves time: without it the permit is found free when the next task asks.
local call = redis.call
if call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
local retries = {}
for i = 2, #ARGV do retries[ARGV[i]] = KEYS[1 + i] end
local clock = call('TIME')
local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
while true do
  local place = call('ZRANGE', KEYS[2], 0, 0)[1]
  if not place then return 0 end
  call('ZREM', KEYS[2], place)
  local lane, entry = string.match(place, '^(%S+) (%S+)$')
  if lane and retries[lane] and call('ZSCORE', retries[lane], entry) then
    call('ZADD', retries[lane], now, entry)
    return 1
  end
end
