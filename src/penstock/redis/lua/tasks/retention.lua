-- Removes results that are older than their retention, oldest first, with their ids: as many as one call can without
-- blocking the server.
-- KEYS: 1 results, 2 done
-- ARGV: 1 how long results are kept, in ms, 2 how many entries at most
-- Returns: {entries, results} that were removed; {0, 0} = there are no more
-- Called twice: continues.
-- include: shared/pages.lua
local call = redis.call
-- include: shared/now.lua
local limit = string.format('%.0f', now_ms - ARGV[1])
local entries, results = {}, 0
local STEP = 1000 -- ids: Lua passes at most 8,000 arguments to a command, and an entry of another program may name more
walk(KEYS[1], '-', '(' .. limit .. '-0', tonumber(ARGV[2]), function(row)
  entries[#entries + 1] = row[1]
  local ids = {}
  for i = 1, #row[2], 8 do
    if row[2][i] == 'task_id' then ids[#ids + 1] = row[2][i + 1] end
  end
  for first = 1, #ids, STEP do
    local gone = {}
    for i, entry in ipairs(call('HMGET', KEYS[2], unpack(ids, first, math.min(first + STEP - 1, #ids)))) do
      if entry == row[1] then gone[#gone + 1] = ids[first + i - 1] end
    end
    if #gone > 0 then results = results + call('HDEL', KEYS[2], unpack(gone)) end
  end
end)
if #entries == 0 then return {0, 0} end
return {call('XDEL', KEYS[1], unpack(entries)), results}
