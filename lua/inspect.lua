-- Reads what stands in Redis for one name.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- Returns {value or '', remaining lease in ms (-1: endless, -2: not held), last fence or 0,
-- number of processes that wait}.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
return {held or '', redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2]) or 0, redis.call('ZCARD', KEYS[3])}
