-- Included by scripts that must not claim what is gone. presence(stream, count) returns a function that tells whether an id is
-- still in the stream, for about so many ids. To look for an entry copies its payload. From 7.0 on the server knows between
-- which ids nothing was deleted or trimmed; its answer has two payloads.
-- include: shared/ids.lua
local function presence(stream, count)
  local known = {}
  if count > 2 then
    local info = redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do known[info[i]] = info[i + 1] end
  end
  local first, deleted = known['recorded-first-entry-id'], known['max-deleted-entry-id']
  return function(id)
    if first and first ~= '0-0' and not is_smaller(id, first) and is_smaller(deleted, id) then return true end
    return #redis.call('XRANGE', stream, id, id) == 1
  end
end
