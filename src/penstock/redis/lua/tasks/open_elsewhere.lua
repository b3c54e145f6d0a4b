-- Included by scripts that compare entries with the index of open tasks: any program can write an entry with the id of another
-- task. is_open_elsewhere(known, entry) returns whether the index, whose value for the task is `known` (false = none), names
-- another entry: then this one is not the task, and must not set its result.
local function is_open_elsewhere(known, entry)
  return known and string.match(known, '^%S+') ~= entry
end
