-- Reads scheduled tasks, each with the beginning of its body, as many as one call can without holding the server up.
-- KEYS: 1 bodies
-- ARGV: 1 bytes of a body to send at most, 2.. ids of tasks
-- Returns: {{kind and the beginning of the body, bytes of both} or {} = there is none, ...}: for fewer ids if bodies are large
-- Called twice: the same again.
-- include: shared/pages.lua
local longest, found, bytes = tonumber(ARGV[1]), {}, 0
for i = 2, #ARGV do
  local body = redis.call('HGET', KEYS[1], ARGV[i])
  found[#found + 1] = body and {string.sub(body, 1, longest), #body} or {}
  bytes = bytes + (body and #body or 0)
  if bytes >= ENOUGH then break end
end
return found
