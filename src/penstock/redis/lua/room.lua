-- Included by scripts that add. length_with_room(stream, length, count, max_len) returns the length of the stream after
-- what every group has finished made room for so many entries, if they do not fit otherwise (max_len 0 = they do).
-- include: needed.lua
local function length_with_room(stream, length, count, max_len)
  if max_len == 0 or length == 0 or length + count <= max_len then return length end
  local limit = needed_from(stream)
  if limit then
    -- XINFO GROUPS costs, so room is made a thousand entries at a time: that is paid once per thousand messages.
    redis.call('XTRIM', stream, 'MINID', '~', limit, 'LIMIT', math.max(1000, count * 2))
    if redis.call('XLEN', stream) + count > max_len then redis.call('XTRIM', stream, 'MINID', limit) end
  end
  return redis.call('XLEN', stream)
end
