-- What the key of a lock may hold.
--
-- "token[ metadata]": the lock is held by the acquisition with this token.
-- "kind:data[ metadata]": a mark. The name is taken, and by nobody: no request has a token
-- that is equal to a mark, so none can extend or release it. A mark has an expiry of its
-- own, and waiters take it for a holder whose lease ends then. The kinds:
--
--   kept     by a minimal hold (keep.lua); the data are the token that has left it
--   roll     while waiters are called (acquire.lua); the data are "deadline:count"
--   revoked  a lock that was taken away; the data are the token that had it
--
-- A token has none of these words and a colon at its beginning: resuming one that has is
-- refused (keys.go, which reads the same format). In all scripts KEYS[1] is the lock.

-- Whether the key holds this token. It is so of a mark as well.

local function owns(held, token)
  return held == token or string.sub(held, 1, #token + 1) == token .. ' '
end
