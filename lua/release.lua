-- Frees the lock, if the key still holds the token. Compare and delete in one
-- script is the only safe way: between a GET and a DEL the lease can end and
-- somebody else's lock would be deleted.
--
-- The lock then goes to the first in the queue, or else to the ticket that the
-- caller brought along for the next one in its own process. If the queue wins,
-- that ticket is queued.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue; or the lock alone, while a cluster moves the
-- slot: it is freed then, and waiters find it by asking
-- ARGV[1] token, ARGV[2] fence retention ms; and where there is more to do: ARGV[3] the
-- token's own ticket, to be withdrawn from the queue, or '', and ARGV[4] ticket of the
-- next one, ARGV[5] queue lifetime ms (0: the next one has no inbox and cannot be
-- queued)
-- Returns "0" if the key is not this token's; 1 if the lock is free now;
-- "1 1 fence time" if the next one has it;
-- "1 2 ttl time" (ms, us) if somebody else has it and the next one is queued,
-- "1 3 ..." if it could not be queued.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
if KEYS[3] and ARGV[3] and ARGV[3] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[3]) end
if held ~= ARGV[1] and not (held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ' ') then
  -- include: absent
  return not_held('0')
end

-- From here nothing may keep the lock from being freed: refusals are caught. ZPOPMIN is
-- a write, after which Redis refuses no more for want of memory.
local brought, popped = ARGV[4], KEYS[3] and redis.pcall('ZPOPMIN', KEYS[3])[1]
if not popped and not brought or not KEYS[3] then
  redis.call('DEL', KEYS[1])
  return 1
end

-- include: serve
local time = redis.call('TIME')
local now = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
local ticket, fence, ttl = serve(popped, brought, now, ARGV[2])
if not ticket then
  redis.call('DEL', KEYS[1])
  return 1
end
if ticket == brought then return '1 1 ' .. fence .. ' ' .. now end
local queued = brought and ARGV[5] ~= '0' and type(redis.pcall('ZADD', KEYS[3], 'NX', now, brought)) == 'number'
if queued then redis.pcall('PEXPIRE', KEYS[3], ARGV[5]) end
return '1 ' .. (queued and 2 or 3) .. ' ' .. ttl .. ' ' .. now
