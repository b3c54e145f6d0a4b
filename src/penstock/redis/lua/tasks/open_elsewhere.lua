-- Included by scripts that compare entries with the index of open tasks: any program can write an entry with the id of another
-- task. is_open_elsewhere(known, entry) returns whether the index, whose value for the task is `known` (false = none), names
-- another entry: then this one is not the task, and must not set its result.
local find, byte = string.find, string.byte -- for every task: quicker than a pattern
local function is_open_elsewhere(known, entry)
  return known and not (find(known, entry, 1, true) == 1 and byte(known, #entry + 1) == 32)
end
