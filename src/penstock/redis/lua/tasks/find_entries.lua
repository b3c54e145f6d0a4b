-- Looks up the tasks of entries in the index of open tasks, a step at a time: an entry that vanished does not say which it was.
-- KEYS: 1 index
-- ARGV: 1 cursor ('0' = begin), 2 how many tasks to look at, 3.. 'entry lane', one word for each
-- Returns: {next cursor ('0' = the end), {number of the word (1 = first), id of the task, ...}}
-- Called twice: the same again. Writes nothing.
local numbers, found = {}, {}
for i = 3, #ARGV do numbers[ARGV[i]] = i - 2 end
local cursor, items = unpack(redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
for i = 1, #items, 2 do
  local number = numbers[string.match(items[i + 1], '^%S+ %S+') or '']
  if number then found[#found + 1], found[#found + 2] = number, items[i] end
end
return {cursor, found}
