-- Reads what stands in Redis for one name.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue; or the lock alone, which also works while
-- a cluster moves the slot: there is no fence and nobody waits then
-- Returns "left fence waiting value": the remaining lease in ms (-1: endless, -2: not
-- held), the last fence or 0, the number of processes that wait, and what the lock holds.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
local fence = KEYS[2] and redis.call('GET', KEYS[2]) or 0
local waiting = KEYS[3] and redis.call('ZCARD', KEYS[3]) or 0
return redis.call('PTTL', KEYS[1]) .. ' ' .. fence .. ' ' .. waiting .. ' ' .. (held or '')
