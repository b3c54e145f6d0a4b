-- Reads entries of a range, or those with given ids, with the beginning of each value, as many as one call can without holding
-- the server up.
-- KEYS: 1 stream
-- ARGV: 1 from, 2 to, 3 how many at most, 4 '1' = newest first (`from` is the greater id then), 5 bytes of a value to send at
--       most, 6 text that some value must contain ('' = any), 7 entries to look at, at most, 8 what the names of the fields
--       to send begin with ('' = all fields), 9.. ids of entries to read instead of the range
-- Returns: {{{id, field, value, bytes of the value, field, ...}, ...}, id of the last entry that was examined or '' = the range
--       has ended}; {} = the entries are huge: read them one by one without a script
-- Called twice: the same again.
-- A value is cut here: an entry may have megabytes, of which a page of entries shows a few lines. What a dead letter says about
-- its failure is sent whole: failures are compared by the end of their tracebacks.
-- include: shared/huge.lua
-- include: shared/pages.lua
local LONGEST_TRACEBACK = 32000
local GREATEST = '18446744073709551615-18446744073709551615' -- the server takes no range behind it
local stream, from, to, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local command = ARGV[4] == '1' and 'XREVRANGE' or 'XRANGE'
local longest, text, max_examined, wanted_fields = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), ARGV[8]

if has_huge_entries(stream) then return {} end

local function contains(row)
  if text == '' then return true end
  for i = 2, #row[2], 2 do
    if string.find(row[2][i], text, 1, true) then return true end
  end
  return false
end

local rows, bytes, examined, page, last = {}, 0, 0, 1, nil
local function visit(row)
  bytes, examined, last = bytes + weight(row), examined + 1, row[1]
  if not contains(row) then return end
  local shown = {row[1]}
  for i = 1, #row[2], 2 do
    local field, value = row[2][i], row[2][i + 1]
    if string.sub(field, 1, #wanted_fields) == wanted_fields then
      local kept = string.sub(field, 1, 4) == 'dlq_' and math.max(longest, LONGEST_TRACEBACK) or longest
      shown[#shown + 1], shown[#shown + 2], shown[#shown + 3] = field, string.sub(value, 1, kept), #value
    end
  end
  rows[#rows + 1] = shown
end

for i = 9, #ARGV do
  local row = redis.call('XRANGE', stream, ARGV[i], ARGV[i])[1]
  if row then visit(row) end
  if bytes >= ENOUGH and i < #ARGV then return {rows, ARGV[i]} end
end
if #ARGV > 8 then return {rows, ''} end

while #rows < most and bytes < ENOUGH and examined < max_examined do
  local wanted = math.min(page, most - #rows, max_examined - examined)
  local found, before = redis.call(command, stream, last and '(' .. last or from, to, 'COUNT', wanted), bytes
  for _, row in ipairs(found) do visit(row) end
  if #found < wanted or (command == 'XRANGE' and last == GREATEST) then return {rows, ''} end
  page = bytes - before > LARGE * #found and 1 or PAGE
end
return {rows, last or ''}
