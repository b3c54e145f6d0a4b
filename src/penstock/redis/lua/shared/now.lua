-- Included by scripts that ask for the time. now_ms is the server's, in ms since the epoch.
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
