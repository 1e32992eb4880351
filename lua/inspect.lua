-- Reads what stands in Redis for one name.
--
-- KEYS[1] lock, KEYS[2] fence
-- Returns {value or '', remaining lease in ms (-1: endless, -2: not held), last fence or 0}.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
return {held or '', redis.call('PTTL', KEYS[1]), last_fence(KEYS[2])}
