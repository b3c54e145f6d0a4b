-- Included by scripts that trim. needed_from(stream) returns the first id that some group still needs:
-- the oldest pending entry, or what follows the last delivered one, whichever group is furthest behind.
-- Returns nil when the stream has no group: then everything is unread and nothing may be trimmed.
local function is_smaller(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if a_ms ~= b_ms then return tonumber(a_ms) < tonumber(b_ms) end
  return tonumber(a_seq) < tonumber(b_seq)
end

local function next_id(id)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  if #seq > 15 then return string.format('%.0f-0', tonumber(ms) + 1) end -- beyond exact doubles
  return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end

local function needed_from(stream)
  local first
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    local id
    if info['pending'] > 0 then
      id = redis.call('XPENDING', stream, info['name'])[2]
      local unread = next_id(info['last-delivered-id'])
      if is_smaller(unread, id) then id = unread end -- a group that was set back by hand
    else
      id = next_id(info['last-delivered-id'])
    end
    if not first or is_smaller(id, first) then first = id end
  end
  return first
end
