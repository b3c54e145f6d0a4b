-- Included by scripts that look at deduplication keys. entry_of(key) returns the id of the entry that was published under the key,
-- or false. Any writer of the stream can choose the name, and put something else there: a key of another type, or text that is no
-- id, counts as absent. To be called before the first write: without the rights to read the key it raises.
local function entry_of(key)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
  return type(found) == 'string' and string.find(found, '^%d+%-%d+$') and found
end
