-- Included by scripts that settle messages. fenced(worker, incarnation, me) returns the error for a process whose name a
-- newer one has taken: the messages that it holds are pending with that name still, but they are the newer one's.
local function fenced(worker, incarnation, me)
  if incarnation == '' then return nil end -- the name is unique anyway
  local holder = redis.call('GET', worker)
  if holder and holder ~= incarnation then return redis.error_reply('FENCED a newer process runs as ' .. me) end
end
