-- Deletes the lock, if the key still holds the token. Compare and delete in one
-- script is the only safe way: between a GET and a DEL the lease can end and
-- somebody else's lock would be deleted.
--
-- KEYS[1] lock
-- ARGV[1] token
-- Returns {1} if it was released, {0} if the key is not this token's.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
if not held or not owns(held, ARGV[1]) then return {0} end

redis.call('DEL', KEYS[1])
return {1}
