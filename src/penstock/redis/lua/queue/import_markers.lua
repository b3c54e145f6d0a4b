-- Moves deduplication keys of redis-message-queue whose messages are not known: they keep the rest of their time here.
-- KEYS: old key, new key, old key, new key, ...
-- ARGV: 1 value of the new keys
-- Returns: how many were moved; a key that exists here already stays as it is.
-- Called twice: the second call finds the old keys gone.
-- include: queue/move_marker.lua
local moved = 0
for i = 1, #KEYS, 2 do
  if move_marker(KEYS[i], KEYS[i + 1], ARGV[1]) then moved = moved + 1 end
end
return moved
