-- Included by scripts that give a lock up. run_out(lock, name) lets it run out within a millisecond under that name, which notifies the
-- peers: Redis sends no event for a key that is deleted. PEXPIRE would delete it silently if the millisecond is over by then.
local function run_out(lock, name)
  local reply = redis.pcall('SET', lock, name, 'PX', 1)
  if reply.err then redis.call('DEL', lock) end -- at the memory limit; sweeps find the stream
end
