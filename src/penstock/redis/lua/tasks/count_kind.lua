-- Included by scripts that count tasks by kind. They define: call, counts. known_kind(kind) returns a kind that may be stored: an
-- entry may name none, or one of megabytes.
-- count_kind(what, kind, number) counts. Producers choose kinds freely: beyond a number of them, all count as 'other',
-- except for tasks whose kind was counted when they were added.
local MOST_COUNTED = 2000

local function known_kind(kind) return (kind == '' or #kind > 512) and 'unknown' or kind end

local function count_kind(what, kind, number)
  kind = known_kind(kind)
  local field = what .. ':' .. kind
  if call('HINCRBY', counts, field, number) ~= number or call('HLEN', counts) <= MOST_COUNTED then return end
  if what ~= 'added' and call('HEXISTS', counts, 'added:' .. kind) == 1 then return end
  call('HDEL', counts, field)
  call('HINCRBY', counts, what .. ':other', number)
end
