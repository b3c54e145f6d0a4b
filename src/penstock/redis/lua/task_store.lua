-- Included by scripts that store results. They define: call, results, done, awaited.
-- known_results(ids) returns for each id the entry of its result, or false. store_results(items) adds one entry for each
-- item {id, kind, status, body, notice} and wakes whoever waits for it; no item may be known.
local function known_results(ids)
  return #ids > 0 and call('HMGET', done, unpack(ids)) or {}
end

local function store_results(items)
  if #items == 0 then return end
  local pairs_of_done, ids = {}, {}
  for n, item in ipairs(items) do
    local entry = call('XADD', results, '*', 'task_id', item[1], 'kind', item[2], 'status', item[3], 'data', item[4])
    pairs_of_done[2 * n - 1], pairs_of_done[2 * n], ids[n] = item[1], entry, item[1]
  end
  call('HSET', done, unpack(pairs_of_done))
  if call('EXISTS', awaited) == 0 then return end
  local waiting = call('ZMSCORE', awaited, unpack(ids))
  for n, item in ipairs(items) do
    if waiting[n] and item[5] then -- else whoever waits finds it by looking
      call('RPUSH', item[5], '1')
      call('PEXPIRE', item[5], 60000)
      call('ZREM', awaited, item[1])
    end
  end
end
