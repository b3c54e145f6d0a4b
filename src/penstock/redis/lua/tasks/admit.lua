-- Lets a task of this consumer begin if the limits of its kind allow that; otherwise puts it aside: pending -> waiting.
-- KEYS: per lane that is named: stream, retries; then attempts of the task's lane; then per limit: permits, waiting ('c') or
--       rate, reserved ('r')
-- ARGV: 1 group, 2 consumer, 3 id of the entry, 4 name of its lane, 5 id of the task, 6 number of lanes, 7 lease in ms,
--       8 how long it waits at most before it asks again, in ms, 9 runs before this one, 10.. names of lanes, the task's
--       among them, then per limit: 'c', how many, 0 or 'r', how many, in how many ms
-- Returns: 1 = begin, 0 = put aside, -1 = it does not belong to this consumer any more, or the names of lanes whose tasks have
--       permits and that were not named: name them and call again
-- Called twice: a permit and a reservation are taken once, and what was put aside stays there.
-- A permit is free again when its task is no longer pending with a worker, or its holder was silent for a lease.
local call = redis.call
local group, me, entry, lane, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lanes, lease_ms = tonumber(ARGV[6]), tonumber(ARGV[7])
-- include: shared/now.lua
local streams, retries_of = {}, {}
for n = 1, lanes do streams[ARGV[9 + n]], retries_of[ARGV[9 + n]] = KEYS[2 * n - 1], KEYS[2 * n] end
local stream, retries = streams[lane], retries_of[lane]
local attempts, first_key, first_limit = KEYS[2 * lanes + 1], 2 * lanes + 2, 10 + lanes
if #call('XPENDING', stream, group, entry, entry, 1, me) == 0 then return -1 end
if call('ZSCORE', retries, entry) then return 0 end -- by a call whose answer got lost

local function is_held(place)
  local where, holder = string.match(place, '^(%S+) (%S+)$')
  if not where or call('ZSCORE', retries_of[where], holder) then return false end
  local rows = redis.pcall('XPENDING', streams[where], group, holder, holder, 1)
  return rows[1] and rows[1][3] < lease_ms -- an error: the lane is gone, and what was in it
end

-- include: tasks/clear_foreign.lua
-- include: shared/put_aside.lua
local function postpone(until_ms)
  put_aside(entry, me, ARGV[9], ARGV[9], until_ms)
  return 0
end

local place, wait_until = lane .. ' ' .. entry, 0
for i = first_limit, #ARGV, 3 do
  local key = first_key + 2 * (i - first_limit) / 3
  if ARGV[i] == 'c' then
    clear_foreign(KEYS[key], redis.pcall('HLEN', KEYS[key]))
    clear_foreign(KEYS[key + 1], redis.pcall('ZCARD', KEYS[key + 1]))
  else
    clear_foreign(KEYS[key], redis.pcall('GET', KEYS[key]))
    clear_foreign(KEYS[key + 1], redis.pcall('SCARD', KEYS[key + 1]))
  end
end
for i = first_limit, #ARGV, 3 do
  local key = first_key + 2 * (i - first_limit) / 3
  if ARGV[i] == 'c' and call('HEXISTS', KEYS[key], id) == 0 and call('HLEN', KEYS[key]) >= tonumber(ARGV[i + 1]) then
    local all, unknown = call('HGETALL', KEYS[key]), {}
    for n = 2, #all, 2 do
      local where = string.match(all[n], '^%S+')
      if where and not streams[where] then unknown[#unknown + 1] = where end
    end
    if #unknown > 0 then return unknown end
    for n = 1, #all, 2 do
      if not is_held(all[n + 1]) then call('HDEL', KEYS[key], all[n]) end
    end
    if call('HLEN', KEYS[key]) >= tonumber(ARGV[i + 1]) then
      call('ZADD', KEYS[key + 1], 'NX', string.format('%.0f', now_ms), place)
      return postpone(now_ms + tonumber(ARGV[8]))
    end
  end
end
for i = first_limit, #ARGV, 3 do
  local key = first_key + 2 * (i - first_limit) / 3
  if ARGV[i] == 'r' and call('SREM', KEYS[key + 1], id) == 0 then
    -- Each beginning takes its share of the time. Up to `how many` shares may be taken ahead.
    local count, per_ms = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local taken = math.max(now_ms, tonumber(call('GET', KEYS[key]) or 0) or 0) + per_ms / count
    call('SET', KEYS[key], string.format('%.3f', taken), 'PX', math.ceil(taken - now_ms + per_ms))
    local begins = taken - per_ms
    if begins > now_ms then
      call('SADD', KEYS[key + 1], id)
      call('PEXPIRE', KEYS[key + 1], math.ceil(begins - now_ms + per_ms + 3600000))
      wait_until = math.max(wait_until, begins)
    end
  end
end
if wait_until > 0 then return postpone(math.ceil(wait_until)) end
for i = first_limit, #ARGV, 3 do
  local key = first_key + 2 * (i - first_limit) / 3
  if ARGV[i] == 'c' then
    call('HSET', KEYS[key], id, place)
    call('ZREM', KEYS[key + 1], place)
  end
end
return 1
