-- Takes over messages whose holder gave no sign of life for the length of the lease: pending -> pending with this consumer.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 dead letters
-- ARGV: 1 group, 2 consumer, 3 lease in ms, 4 how many at most, 5 cursor, 6 how many entries of the slow sweep to look at
-- Returns: {next cursor, {{id, count, attempts, fields}, ...}, {missing ids}}
-- Called twice: the second call finds other messages; what the first took is pending with this consumer.
-- Two looks. Consumers that were silent for a lease are asked for their idle entries: that finds everything of a dead
-- worker and costs nothing while all are alive, however much they hold. A page of the whole list is looked at as well,
-- from a cursor on: the guarantee for entries whose owner is alive but has forgotten them.
-- include: streams/claim.lua
local lease_ms, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local out, missing = {}, {}

local function consider(entry)
  if entry[3] >= lease_ms and not redis.call('ZSCORE', retries, entry[1]) then claim(entry, out, missing) end
end

for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local info = {}
  for i = 1, #consumer, 2 do info[consumer[i]] = consumer[i + 1] end
  local room = limit - #out - #missing
  if room > 0 and info['pending'] > 0 and info['idle'] >= lease_ms and info['name'] ~= me then
    for _, entry in ipairs(redis.call('XPENDING', stream, group, 'IDLE', lease_ms, '-', '+', room, info['name'])) do
      consider(entry)
    end
  end
end

local cursor = ARGV[5]
local page = redis.call('XPENDING', stream, group, cursor, '+', ARGV[6])
for _, entry in ipairs(page) do
  if #out + #missing >= limit then break end
  cursor = '(' .. entry[1]
  if entry[2] ~= me then consider(entry) end
end
if #page < tonumber(ARGV[6]) and #out + #missing < limit then cursor = '-' end
return {cursor, out, missing}
