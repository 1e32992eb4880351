-- Takes the lock on a node that has been seen to be free, for a token that holds a
-- majority of the others. Not if anybody had it here meanwhile: that would have
-- raised the record.
--
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] token, ARGV[2] token with metadata, ARGV[3] ttl ms, ARGV[4] fence retention ms,
-- ARGV[5] the token's fence, ARGV[6] the record when the node was free, '' if there was none
-- Returns "1" if the key holds the token now, or "0".

-- include: value
-- include: fence
-- include: raise

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
if held then return owns(held, ARGV[1]) and '1' or '0' end
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[6] then return '0' end
raise_fence(ARGV[5], ARGV[4])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return '1'
