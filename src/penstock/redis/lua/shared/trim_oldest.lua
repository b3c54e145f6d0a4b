-- Included by scripts that trim. trim_oldest(stream, limit, most) removes entries before the id `limit`, oldest first, up to
-- `most` of them, as many as one call can without holding the server up. Returns: how many went, whether there may be more.
-- include: shared/needed.lua
-- include: shared/pages.lua
-- include: shared/trim_before.lua
local function trim_oldest(stream, limit, most)
  local removed, is_more = trim_before(stream, limit, 0, most)
  if is_more or removed == most then return removed, is_more end
  -- What is left is a part of one node, or of few.
  local left = most - removed
  if redis.call('XLEN', stream) <= left then return removed + redis.call('XTRIM', stream, 'MINID', limit), false end
  local counted, last, is_end = walk(stream, '-', '(' .. limit, left, function() end)
  if counted == 0 then return removed, false end
  return removed + redis.call('XTRIM', stream, 'MINID', next_id(last)), counted < left and not is_end
end
