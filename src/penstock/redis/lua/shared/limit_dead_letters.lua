-- Removes the oldest dead letters beyond their limits, as many as one call can without holding the server up.
-- KEYS: 1 dead letters, 2 hash in which those that went are counted, if there is one
-- ARGV: 1 most records, 2 oldest in ms, 3 most bytes (0 = no such limit), 4 '1' = also what a group has not acknowledged
-- Returns: {how many went, 1 = another call can remove more, 1 = a group keeps some of those beyond the limits, why the size is
--       not known or ''}
-- Called twice: continues, up to the same limits.
-- include: shared/trim_oldest.lua
local dead, max_count, max_age_ms, max_bytes = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local SAMPLES = 50000 -- nodes whose size is looked up, in 2 ms; of a longer stream the rest is taken to be like these
if redis.call('EXISTS', dead) == 0 then return {0, 0, 0, ''} end
local needed = ARGV[4] ~= '1' and needed_from(dead) or nil
local limit = needed or MOST .. '-' .. MOST
local removed, is_more, is_held = 0, false, false

local function has_before(id) return #redis.call('XRANGE', dead, '-', '(' .. id, 'COUNT', 1) > 0 end

-- include: shared/now.lua
if max_age_ms > 0 and now_ms > max_age_ms then
  local old = string.format('%.0f-0', now_ms - max_age_ms)
  local is_needed = needed and is_smaller(needed, old)
  removed, is_more = trim_oldest(dead, is_needed and needed or old, redis.call('XLEN', dead))
  is_held = not is_more and is_needed and has_before(old)
end

local excess = max_count > 0 and redis.call('XLEN', dead) - max_count or 0
if excess > 0 and not is_more then -- else this call has freed enough
  local gone
  gone, is_more = trim_oldest(dead, limit, excess)
  removed = removed + gone
  is_held = is_held or (not is_more and gone < excess and needed ~= nil)
end

local used = max_bytes > 0 and not is_more and redis.pcall('MEMORY', 'USAGE', dead, 'SAMPLES', SAMPLES) or 0
local refusal = ''
if type(used) ~= 'number' then used, refusal = 0, used.err end -- it may be forbidden to ask
local length = redis.call('XLEN', dead)
if used > max_bytes and length > 1 then
  -- Whole nodes, for a part of one frees nothing. The newest record stays, however large it is.
  excess = math.min(length - 1, math.ceil((used - max_bytes) / (used / length)))
  local gone
  gone, is_more = trim_before(dead, limit, 0, excess)
  removed = removed + gone
  is_held = is_held or (not is_more and gone < excess and needed ~= nil and not has_before(needed))
end

if removed > 0 and KEYS[2] then redis.pcall('HINCRBY', KEYS[2], 'dead_trimmed', removed) end
return {removed, is_more and 1 or 0, is_held and 1 or 0, refusal}
