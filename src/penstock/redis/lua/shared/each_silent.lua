-- Included by scripts that take over from holders who gave no sign of life. They define: stream, group, retries.
-- each_silent(idle_ms, me, room, cursor, page, take) calls take(entry) for each row of XPENDING that was idle for so long and does
-- not wait for its retry, except for those of the consumer `me`, while room() says how many more there may be. Returns: next cursor.
-- Two looks. Consumers that were silent for as long are asked for their idle entries: that finds everything of a dead worker and
-- costs nothing while all are alive, however much they hold. A page of the whole list is looked at as well, from a cursor on: the
-- guarantee for entries whose owner is alive but has forgotten them.
-- include: shared/group_info.lua
local function each_silent(idle_ms, me, room, cursor, page, take)
  local function consider(entry)
    if entry[3] >= idle_ms and not redis.call('ZSCORE', retries, entry[1]) then take(entry) end
  end
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local info = as_table(consumer)
    local most = room()
    if most > 0 and info['pending'] > 0 and info['idle'] >= idle_ms and info['name'] ~= me then
      for _, entry in ipairs(redis.call('XPENDING', stream, group, 'IDLE', idle_ms, '-', '+', most, info['name'])) do
        if room() > 0 then consider(entry) end
      end
    end
  end
  if room() <= 0 then return cursor end
  local entries, last = redis.call('XPENDING', stream, group, cursor, '+', page), nil
  for _, entry in ipairs(entries) do
    if entry[3] >= idle_ms and entry[2] ~= me then  -- asked first: nearly all are held by somebody who is alive
      if room() <= 0 then return last and '(' .. last or cursor end
      consider(entry)
    end
    last = entry[1]
  end
  return #entries < page and room() > 0 and '-' or last and '(' .. last or cursor
end
