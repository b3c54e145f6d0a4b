-- Included by scripts that count tasks by kind. They define: call, counts.
-- count_kind(what, kind, number) counts. Producers choose kinds freely: beyond a number of them, all count as 'other',
-- except for tasks whose kind was counted when they were added.
local MOST_COUNTED = 2000

local function count_kind(what, kind, number)
  local field = what .. ':' .. kind
  if call('HINCRBY', counts, field, number) ~= number or call('HLEN', counts) <= MOST_COUNTED then return end
  if what ~= 'added' and call('HEXISTS', counts, 'added:' .. kind) == 1 then return end
  call('HDEL', counts, field)
  call('HINCRBY', counts, what .. ':other', number)
end
