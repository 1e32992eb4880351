-- Gives the answer that a lock is not the token's. A replica must not, since it may be
-- behind, and a client that has missed a fail-over may still ask it: it refuses to write,
-- even what changes nothing. (On a primary this is refused as well if the lock is held,
-- for it is no sorted set.)
local function not_held(answer)
  local written = redis.pcall('ZREM', KEYS[1], '')
  if type(written) == 'table' and string.find(written.err, 'READONLY', 1, true) then
    return redis.error_reply(written.err)
  end
  return answer
end
