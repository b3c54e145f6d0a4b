-- Looks at what is in hand in a lane; reads only.
-- KEYS: 1 stream, 2 retries
-- ARGV: 1 group, 2 how many entries to look at, at most
-- Returns: {in hand, waiting for their next run, greatest idle time in ms of those in hand that were looked at}
-- Called twice: the same again.
local call = redis.call
local total, waiting, longest = call('XPENDING', KEYS[1], ARGV[1])[1], call('ZCARD', KEYS[2]), 0
local left, start = tonumber(ARGV[2]), '-'
while left > 0 do
  local page = call('XPENDING', KEYS[1], ARGV[1], start, '+', math.min(left, 500))
  for _, entry in ipairs(page) do
    if entry[3] > longest and not call('ZSCORE', KEYS[2], entry[1]) then longest = entry[3] end
    start = '(' .. entry[1]
  end
  if #page < 500 then break end
  left = left - #page
end
return {total - waiting, waiting, longest}
