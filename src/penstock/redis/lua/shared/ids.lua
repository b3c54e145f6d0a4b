-- Included by scripts that compare ids. An id is two unsigned 64-bit numbers, which Lua's doubles cannot hold: they stay
-- texts, compared by length and then by digits, and are counted up and down digit by digit.
local MOST = '18446744073709551615'

local function split(id) return string.match(id, '^(%d+)-(%d+)$') end

local function is_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function is_smaller(a, b)
  local a_ms, a_seq = split(a)
  local b_ms, b_seq = split(b)
  if a_ms ~= b_ms then return is_less(a_ms, b_ms) end
  return is_less(a_seq, b_seq)
end

local function plus_one(number)
  local head, digit, nines = string.match(number, '^(%d-)([0-8]?)(9*)$')
  return head .. (digit == '' and '1' or string.char(string.byte(digit) + 1)) .. string.rep('0', #nines)
end

local function minus_one(number)
  local head, digit, zeros = string.match(number, '^(%d-)([1-9])(0*)$')
  local less = head .. string.char(string.byte(digit) - 1) .. string.rep('9', #zeros)
  return #less > 1 and string.gsub(less, '^0', '') or less
end

-- The smallest id that is greater. Behind the greatest id of all there is none: it is its own successor.
local function next_id(id)
  local ms, seq = split(id)
  if seq ~= MOST then return ms .. '-' .. plus_one(seq) end
  return ms == MOST and id or plus_one(ms) .. '-0'
end

-- The greatest id that is smaller, and 0-0 for 0-0.
local function previous_id(id)
  local ms, seq = split(id)
  if seq ~= '0' then return ms .. '-' .. minus_one(seq) end
  return ms == '0' and id or minus_one(ms) .. '-' .. MOST
end
