-- Included by scripts that add. length_with_room(stream, length, count, max_len) returns the length of the stream after
-- what every group has finished made room for that many entries, if they do not fit otherwise (max_len 0 = they do).
-- include: shared/needed.lua
-- include: shared/trim_before.lua
local function length_with_room(stream, length, count, max_len)
  if max_len == 0 or length == 0 or length + count <= max_len then return length end
  local limit = needed_from(stream)
  if limit then
    -- XINFO GROUPS costs, so room is made for many messages at a time.
    local lacking = length + count - max_len
    local removed = trim_before(stream, limit, lacking, math.huge)
    if removed < lacking then redis.call('XTRIM', stream, 'MINID', limit) end -- the part of a node that is left
  end
  return redis.call('XLEN', stream)
end
