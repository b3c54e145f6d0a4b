-- Included by scripts that copy an entry: Lua hands at most 8,000 arguments to a command, and anybody may write an entry
-- with more. kept_fields(fields) returns the fields that a copy has room for, in a table of its own, and what was cut
-- (nil = nothing). The limits and the order are those of dead_letter_record.py, which says why.
local MAX_FIELDS, MAX_BYTES = 2000, 16777216
local WELL_KNOWN = {'data', 'message_id', 'key', 'headers', 'content_type', 'expires_at', 'redrives', 'dedup_key', 'origin',
  'dlq_cut', 'task_id', 'kind', 'attempts', 'lbs-input'}

local function kept_fields(fields)
  local size, kept, kept_size, others, room = 0, {}, 0, 0, MAX_BYTES
  for i = 1, #fields do size = size + #fields[i] end
  if #fields <= 2 * MAX_FIELDS and size <= MAX_BYTES then
    for i = 1, #fields do kept[i] = fields[i] end
    return kept
  end
  local last, is_done = {}, {}
  for i = 1, #fields, 2 do last[fields[i]] = fields[i + 1] end
  local function keep(name, is_other)
    local value = last[name]
    if not value or is_done[name] then return end
    is_done[name] = true
    local needed = #name + #value
    if name ~= 'data' then
      if needed > room or (is_other and others == MAX_FIELDS) then return end
      room = room - needed
    end
    if is_other then others = others + 1 end
    kept[#kept + 1], kept[#kept + 2] = name, value
    kept_size = kept_size + needed
  end
  for _, name in ipairs(WELL_KNOWN) do keep(name) end
  for i = 1, #fields, 2 do keep(fields[i], true) end
  local left = (#fields - #kept) / 2
  if left > 0 then return kept, string.format('%.0f fields, %.0f bytes', left, size - kept_size) end
  return kept
end
