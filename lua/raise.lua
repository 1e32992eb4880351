-- Writes a fence back to a node that has granted the lock, if it still holds the
-- token. The condition is what makes it a proof: while the token stood here, the
-- record was at least the fence, so whoever takes the lock here later mints more.
--
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] token, ARGV[2] fence, ARGV[3] fence retention ms
-- Returns "1", or "0" if the key is not this token's.

-- include: value
-- include: fence
-- include: raise

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
if not held or not owns(held, ARGV[1]) then return '0' end
raise_fence(ARGV[2], ARGV[3])
return '1'
