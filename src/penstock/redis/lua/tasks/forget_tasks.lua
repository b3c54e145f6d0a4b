-- Included by scripts that end tasks. They define: call, index, unique.
-- forget_tasks(ids, entries, open) strikes tasks from the index, if that still names these entries, and frees their unique
-- texts; `open` are the values of the index, nil = read them.
-- include: tasks/open_elsewhere.lua
local function forget_tasks(ids, entries, open)
  local gone = {}
  if #ids == 0 then return end
  for n, value in ipairs(open or call('HMGET', index, unpack(ids))) do
    if value and not is_open_elsewhere(value, entries[n]) then
      local text = string.match(value, '^%S+ %S+ (.*)$')
      gone[#gone + 1] = ids[n]
      if text and call('HGET', unique, text) == ids[n] then call('HDEL', unique, text) end
    end
  end
  if #gone > 0 then call('HDEL', index, unpack(gone)) end
end
