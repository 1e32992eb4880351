-- What only the scripts of a quorum need.

-- Text of the same length compares as its number does.
local function below(a, b)
  return #a < #b or #a == #b and a < b
end

-- The record of the fence never falls: a request may be executed late.
local function raise_fence(fence, retention)
  local last = redis.call('GET', KEYS[2])
  if last and not below(last, fence) then
    keep_fence(retention)
  else
    redis.call('SET', KEYS[2], fence, 'PX', retention)
  end
end
