-- Included by scripts that settle messages: ARGV: 2 consumer, 3 incarnation ('' = the name is unique anyway). They define: worker.
-- Ends the script of a process whose name a newer one has taken: the messages that it holds are pending with that name still, but
-- they are the newer one's. No function, which would cost each acknowledgement a quarter of a microsecond.
if ARGV[3] ~= '' then
  local holder = redis.call('GET', worker)
  if holder and holder ~= ARGV[3] then return redis.error_reply('FENCED a newer process runs as ' .. ARGV[2]) end
end
