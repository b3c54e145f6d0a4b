-- Included by scripts that read results. stored_result(stream, entry, id) returns status and body of the result of a task
-- in an entry of the results, and how many results the entry has; nothing if it is not there.
local function stored_result(stream, entry, id)
  local row = redis.call('XRANGE', stream, entry, entry)[1]
  local fields = row and row[2] or {}
  for i = 2, #fields, 8 do
    if fields[i] == id then return fields[i + 4], fields[i + 6], #fields / 8 end
  end
end
