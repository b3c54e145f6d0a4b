-- Included by scripts that end tasks. They define: call, index, unique.
-- forget_tasks(ids, entries) strikes tasks from the index, if that still speaks of these entries, and frees their unique
-- texts; returns for each whether it was open.
local function forget_tasks(ids, entries)
  local was_open, gone = {}, {}
  if #ids == 0 then return was_open end
  for n, value in ipairs(call('HMGET', index, unpack(ids))) do
    local entry, text
    if value then
      entry, text = string.match(value, '^(%S+) %S+ (.*)$')
      if not entry then entry = string.match(value, '^%S+') end
    end
    was_open[n] = entry == entries[n]
    if was_open[n] then
      gone[#gone + 1] = ids[n]
      if text and call('HGET', unique, text) == ids[n] then call('HDEL', unique, text) end
    end
  end
  if #gone > 0 then call('HDEL', index, unpack(gone)) end
  return was_open
end
