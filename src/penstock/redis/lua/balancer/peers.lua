-- Included by the scripts of the balancer that compare consumers of one service. A consumer writes down until when it
-- counts as alive, how many streams it owns and how many it can own (0 = any number). Go peers do not.
-- include: shared/now.lua
local function register(peers, me, until_ms, owned, capacity)
  -- pcall: a server at its memory limit refuses it, and the locks go on without.
  redis.pcall('HSET', peers, me, string.format('%.0f', until_ms) .. ' ' .. owned .. ' ' .. capacity)
end

-- Returns how many streams the least loaded other live peer with room owns; nil = there is none.
local function least_owned(peers, me, now)
  local all, least = redis.call('HGETALL', peers), nil
  for i = 1, #all, 2 do
    local until_ms, owned, capacity = string.match(all[i + 1], '^(%d+) (%d+) (%d+)$')
    if until_ms == nil or tonumber(until_ms) + 60000 < now then
      redis.call('HDEL', peers, all[i]) -- gone for long
    elseif all[i] ~= me and tonumber(until_ms) >= now then
      owned, capacity = tonumber(owned), tonumber(capacity)
      if (capacity == 0 or owned < capacity) and (least == nil or owned < least) then least = owned end
    end
  end
  return least
end
