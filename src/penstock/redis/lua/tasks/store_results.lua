-- Included by scripts that store results. They define: call, results, done, awaited.
-- known_results(ids) returns for each id the entry of its result, or false. store_results(items) stores each item
-- {id, kind, status, body, notice} and wakes the callers that wait for it; no item may be known.
-- Results that come together share an entry, one group of fields after the other: an XADD for each would cost the server
-- as much as all the rest.
local function known_results(ids)
  return #ids > 0 and call('HMGET', done, unpack(ids)) or {}
end

local function store_results(items)
  if #items == 0 then return end
  local pairs_of_done, ids, fields, bytes = {}, {}, {}, 0
  local function add_entry()
    local entry = call('XADD', results, '*', unpack(fields))
    for i = 2, #fields, 8 do pairs_of_done[#pairs_of_done + 1], pairs_of_done[#pairs_of_done + 2] = fields[i], entry end
    fields, bytes = {}, 0
  end
  for n, item in ipairs(items) do
    if #fields == 64 * 8 or (#fields > 0 and bytes + #item[4] > 65536) then add_entry() end
    for i, field in ipairs({'task_id', 'kind', 'status', 'data'}) do
      fields[#fields + 1], fields[#fields + 2] = field, item[i]
    end
    bytes, ids[n] = bytes + #item[4], item[1]
  end
  add_entry()
  call('HSET', done, unpack(pairs_of_done))
  if call('EXISTS', awaited) == 0 then return end
  local waiting = call('ZMSCORE', awaited, unpack(ids))
  for n, item in ipairs(items) do
    if waiting[n] and item[5] then -- else the callers find it by polling
      redis.pcall('RPUSH', item[5], '1') -- a key of another type
      call('PEXPIRE', item[5], 60000)
      call('ZREM', awaited, item[1])
    end
  end
end
