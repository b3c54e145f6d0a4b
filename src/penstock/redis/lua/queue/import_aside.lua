-- Puts a list of redis-message-queue aside, because its key is that of a stream here.
-- KEYS: 1 list, 2 where it goes
-- ARGV: none
-- Returns: the length of the list that was set aside.
-- Called twice: the second call finds no list and moves nothing. What an old consumer added meanwhile is put in front.
local list, aside = KEYS[1], KEYS[2]
if redis.call('TYPE', list).ok == 'list' then
  if redis.call('EXISTS', aside) == 0 then
    redis.call('RENAME', list, aside)
  else
    while redis.call('LMOVE', list, aside, 'RIGHT', 'LEFT') do end
  end
end
return redis.call('LLEN', aside)
