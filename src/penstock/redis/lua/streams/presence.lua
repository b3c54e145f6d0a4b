-- Included by scripts that must not claim what is gone. presence(stream, count) returns a function that returns whether an id is
-- still in the stream, for about that many ids. Reading an entry copies its payload. From 7.0 on the server knows between
-- which ids nothing was deleted or trimmed; its answer has two payloads.
-- include: shared/ids.lua
-- include: shared/group_info.lua
local function presence(stream, count)
  local known = count > 2 and as_table(redis.call('XINFO', 'STREAM', stream)) or {}
  local first, deleted = known['recorded-first-entry-id'], known['max-deleted-entry-id']
  return function(id)
    if first and first ~= '0-0' and not is_smaller(id, first) and is_smaller(deleted, id) then return true end
    return #redis.call('XRANGE', stream, id, id) == 1
  end
end
