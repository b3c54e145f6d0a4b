-- Included by scripts that walk through a stream. There is no way to an id but through its payload, which Lua copies: a
-- script that asks for two thousand entries holds the server up for as long as their payloads are long. walk(stream, from,
-- to, most, visit) reads entries in small pages until `most` were seen, or enough bytes. Entries are asked for one by one
-- while they are large; a page of four is what the first large ones behind small ones can cost.
-- visit(row) is called for each entry. Returns: how many, id of the last or nil, whether the range has ended.
local ENOUGH, LARGE, PAGE = 524288, 8192, 4

local function weight(row)
  local fields = row[2]
  local bytes = 32 * #fields -- a field costs, too
  for i = 1, #fields do bytes = bytes + #fields[i] end
  return bytes
end

local function walk(stream, from, to, most, visit)
  local count, bytes, page, last = 0, 0, 1, nil
  while count < most and bytes < ENOUGH do
    local wanted = math.min(page, most - count)
    local rows = redis.call('XRANGE', stream, last and '(' .. last or from, to, 'COUNT', wanted)
    local read = 0
    for _, row in ipairs(rows) do
      read = read + weight(row)
      visit(row)
    end
    count, bytes = count + #rows, bytes + read
    if #rows > 0 then last = rows[#rows][1] end
    if #rows < wanted or last == '18446744073709551615-18446744073709551615' then return count, last, true end
    page = read > LARGE * #rows and 1 or PAGE
  end
  return count, last, false
end
