-- Included by scripts that change several messages of this consumer: KEYS: 1 stream; ARGV: 1 group, 2 consumer, 3 incarnation, then
-- `size` words for each message, the id first. They define: worker. each_held(size, change) calls change(id, i, is_present) for each
-- that is pending with this consumer: its id is ARGV[i]. Returns: for each message 1, or 0 = it is not this consumer's any more.
-- include: streams/fence.lua
-- include: streams/presence.lua
local stream, group, me = KEYS[1], ARGV[1], ARGV[2]

local function each_held(size, change)
  local answers, is_present = {}, presence(stream, (#ARGV - 3) / size)
  for i = 4, #ARGV, size do
    local id = ARGV[i]
    local is_mine = #redis.call('XPENDING', stream, group, id, id, 1, me) == 1
    if is_mine then change(id, i, is_present(id)) end
    answers[#answers + 1] = is_mine and 1 or 0
  end
  return answers
end
