-- Included by scripts that end the life of a message in a queue. discard(stream, id) deletes the entry, unless the stream
-- has another group (a Spark query, an archive, other consumers): then it stays until all of them are done with it.
local function discard(stream, id)
  if #redis.call('XINFO', 'GROUPS', stream) == 1 then redis.call('XDEL', stream, id) end
end
