-- Included by scripts that use the keys of limits, whose names tasks choose. clear_foreign(key, reply) returns whether the reply of
-- a pcall says that the key holds another type, and deletes that key then: it was written by another program.
local function clear_foreign(key, reply)
  local is_foreign = type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true)
  if is_foreign then redis.call('DEL', key) end
  return is_foreign
end
