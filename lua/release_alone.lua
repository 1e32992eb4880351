-- Frees the lock, if the key still holds the token, and looks at nothing else: for a
-- cluster that is moving the slot, where a script gets TRYAGAIN as long as some of its
-- keys exist on one node and others do not. Those who wait find the lock by asking.
--
-- KEYS[1] lock
-- ARGV[1] token; the further arguments of release.lua are left aside
-- Returns what release.lua does: "0", or 1.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
if not held or not owns(held, ARGV[1]) then return not_held('0') end
redis.call('DEL', KEYS[1])
return 1
