-- Included by scripts that trim. needed_from(stream) returns the first id that some group still needs:
-- the oldest pending entry, or what follows the last delivered one, whichever group is furthest behind.
-- Returns nil when the stream has no group: then everything is unread and nothing may be trimmed.
-- include: shared/ids.lua
-- include: shared/group_info.lua
local function needed_from(stream)
  local first
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = as_table(group)
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
