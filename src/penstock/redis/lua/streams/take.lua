-- Takes back messages that are pending with this very consumer but that none of its handlers holds, as after a lost reply.
-- KEYS: 1 stream, 2 retries, 3 attempts, 4 dead letters, if missing messages are to be settled
-- ARGV: 1 group, 2 consumer, 3 '1' = this process has read them itself, 4.. ids
-- Returns: {{{id, count, attempts, fields}, ...}, {missing ids}, how many of the ids were examined: the others are left to the
--       next call, because the messages are large}
-- Called twice: gives the same again.
-- An entry that this process read, once, and that has no record of attempts was never begun: the reply that carried it
-- got lost. One of an earlier process of this name may have been begun, and have taken that process down.
-- include: streams/claim.lua
local out, missing, examined = {}, {}, 0
for i = 4, #ARGV do
  if is_enough() then break end
  examined = examined + 1
  local entry = redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1, me)[1]
  if entry and not redis.call('ZSCORE', retries, ARGV[i]) then
    if ARGV[3] == '1' and entry[4] == 1 and not redis.call('HGET', attempts, ARGV[i]) then entry[4] = 0 end
    claim(entry, out, missing)
  end
end
return {out, missing, examined}
