-- Included by scripts that trim. trim_before(stream, limit, least, most) removes entries before the id `limit`, oldest
-- first, and never more than `most`. It stops when `least` went and to go on would hold the server up: to free a large
-- entry takes the server a while, whatever the command. Returns: how many went, whether there may be more.
-- '~' removes whole nodes of the stream, of which each has one large entry or many small ones, and reads nothing.
local TOGETHER, LARGE_TOGETHER, LARGEST_NODE = 1000, 16, 16384

local function trim_before(stream, limit, least, most)
  local removed, large, step = 0, 0, 1
  while removed < most and (removed < least or (removed < TOGETHER and large < LARGE_TOGETHER)) do
    local gone = 0
    step = step / 8 < most - removed and math.max(1, step / 4) or 1 -- the next node is about as the last one
    while gone == 0 and step <= LARGEST_NODE and step / 2 < most - removed do
      gone = redis.call('XTRIM', stream, 'MINID', '~', limit, 'LIMIT', math.min(step, most - removed))
      if gone == 0 then step = step * 2 end
    end
    if gone == 0 then return removed, false end
    removed, large = removed + gone, large + (step == 1 and 1 or 0)
  end
  return removed, removed < most
end
