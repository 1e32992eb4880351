-- Reads what stands in Redis for one name.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- Returns "left fence waiting value": the remaining lease in ms (-1: endless, -2: not
-- held), the last fence or 0, the number of processes that wait, and what the lock holds.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
return redis.call('PTTL', KEYS[1]) .. ' ' .. (redis.call('GET', KEYS[2]) or 0) .. ' '
  .. redis.call('ZCARD', KEYS[3]) .. ' ' .. (held or '')
