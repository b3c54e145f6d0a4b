-- Included by scripts that ask what the server knows. as_table(reply) returns the fields and values of an XINFO reply by name.
-- group_info(stream, name) returns what is known of one group, nil = there is none, and how many the stream has.
local function as_table(reply)
  local info = {}
  for i = 1, #reply, 2 do info[reply[i]] = reply[i + 1] end
  return info
end

local function group_info(stream, name)
  local groups = redis.call('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups) do
    if group[2] == name then return as_table(group), #groups end
  end
  return nil, #groups
end
