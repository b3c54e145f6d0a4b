-- Renews the leases of messages that this consumer holds. Never takes one back from another consumer.
-- KEYS: 1 stream, 2 worker (only with an incarnation)
-- ARGV: 1 group, 2 consumer, 3 incarnation ('' = the name is unique anyway), 4 TTL of the worker key in ms, 5.. ids
-- Returns: {refused ids, vanished ids}; vanished = pending with this consumer, but trimmed or deleted: see hold_vanished.lua
-- Called twice: renews again.
local stream, worker, group, me = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
-- include: streams/fence.lua
-- include: streams/presence.lua
local mine, refused, vanished, is_present = {}, {}, {}, presence(stream, #ARGV - 4)
for i = 5, #ARGV do
  if #redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1, me) == 0 then
    refused[#refused + 1] = ARGV[i]
  elseif not is_present(ARGV[i]) then
    vanished[#vanished + 1] = ARGV[i] -- XCLAIM would drop it from the pending list, from 7.0 on
  else
    mine[#mine + 1] = ARGV[i]
  end
end
if #mine > 0 then
  -- JUSTID leaves the delivery count alone; idle time starts from 0. Last in the list: unpack gives all its values only there.
  mine[#mine + 1] = 'JUSTID'
  redis.call('XCLAIM', stream, group, me, 0, unpack(mine))
end
if ARGV[3] ~= '' then redis.pcall('SET', worker, ARGV[3], 'PX', ARGV[4]) end
return {refused, vanished}
