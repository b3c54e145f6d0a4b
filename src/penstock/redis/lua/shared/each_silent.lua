-- Included by scripts that take over from silent holders. They define: stream, group, retries, now_ms.
-- each_silent(idle_ms, me, room, cursor, page, take) calls take(entry) for each row of XPENDING that was idle for so long and does
-- not wait for its retry, except for those of the consumer `me`, while room() says how many more there may be.
-- Returns: next cursor, whether to call again at once, because there are more rows that wait than one call can pass over.
-- Two scans. Consumers that were silent for as long are asked for their idle entries: that finds everything of a dead worker and
-- costs nothing while all are alive, however much they hold. A page of the whole list is examined as well, from a place on: the
-- guarantee for entries whose owner is alive but has forgotten them.
-- A dead worker may also hold thousands that wait for their retry, before those that it was processing. They are passed over once:
-- the cursor is the place in the whole list, and a word for each silent consumer with such rows: digest of its name, when it was
-- seen last in ms, place behind the rows that were examined ('+' = all). A consumer that was seen again since is examined anew.
-- include: shared/group_info.lua
local SKIPPED, TOGETHER = 2000, 500 -- rows that a call, and one reply, look at: a row takes 2 microseconds

local function each_silent(idle_ms, me, room, cursor, page, take)
  local left, words, places = SKIPPED, {string.match(cursor, '^%S+')}, {}
  local function waits(entry) return redis.call('ZSCORE', retries, entry[1]) ~= false end

  local function scan(name, from)
    local has_waiting = from ~= '-'
    while room() > 0 and left > 0 do
      local most = has_waiting and TOGETHER or math.min(TOGETHER, room())
      local rows = redis.call('XPENDING', stream, group, 'IDLE', idle_ms, from, '+', most, name)
      left = left - #rows
      for _, entry in ipairs(rows) do
        if room() <= 0 then return has_waiting and from or '-' end
        if waits(entry) then has_waiting = true else take(entry) end
        from = '(' .. entry[1]
      end
      if #rows < most then return has_waiting and '+' or '-' end
    end
    return from
  end

  for mark, seen_ms, place in string.gmatch(cursor, ' (%x+):(%d+):(%S+)') do places[mark] = {tonumber(seen_ms), place} end
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local info = as_table(consumer)
    local mark, seen_ms = string.sub(redis.sha1hex(info['name']), 1, 12), now_ms - info['idle']
    local known = places[mark]
    local is_unfinished = known and known[2] ~= '+' -- taking its rows may have made it look alive
    if info['pending'] > 0 and (info['idle'] >= idle_ms or is_unfinished) and info['name'] ~= me then
      local is_known = known and (is_unfinished or seen_ms < known[1] + 1000) -- the two clocks may differ by a few ms
      local place = is_known and known[2] or '-'
      if place ~= '+' then place = scan(info['name'], place) end
      if place ~= '-' then words[#words + 1] = string.format('%s:%.0f:%s', mark, seen_ms, place) end
    end
  end
  if room() <= 0 or left <= 0 then return table.concat(words, ' '), room() > 0 end

  local entries, last = redis.call('XPENDING', stream, group, words[1], '+', page), nil
  for _, entry in ipairs(entries) do
    if entry[3] >= idle_ms and entry[2] ~= me then  -- asked first: nearly all are held by somebody who is alive
      if room() <= 0 then break end
      if not waits(entry) then take(entry) end
    end
    last = entry[1]
  end
  if #entries < page and room() > 0 then words[1] = '-' elseif last then words[1] = '(' .. last end
  return table.concat(words, ' '), false
end
