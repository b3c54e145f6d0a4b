-- Included by scripts that read entries. has_huge_entries(stream) returns whether they have megabytes, by the memory that the
-- stream takes: there is no way to the size of an entry but through its payload, which Lua copies, at 2 to 4 ms a megabyte.
-- Where a user may not ask for the memory, nothing is huge.
local HUGE = 2097152

local function has_huge_entries(stream)
  local length, memory = redis.call('XLEN', stream), redis.pcall('MEMORY', 'USAGE', stream, 'SAMPLES', 1)
  return length > 0 and type(memory) == 'number' and memory / length > HUGE
end
