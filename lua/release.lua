-- Frees the lock, if the key still holds the token. Compare and delete in one
-- script is the only safe way: between a GET and a DEL the lease can end and
-- somebody else's lock would be deleted.
--
-- The lock then goes to the first in the queue, or else to the ticket that the
-- caller brought along for the next one in its own process. If the queue wins,
-- that ticket is queued.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- ARGV[1] token, ARGV[2] ticket of the next one or '', ARGV[3] queue lifetime ms (0:
-- the next one has no inbox and cannot be queued), ARGV[4] fence retention ms,
-- ARGV[5] the token's own ticket, to be withdrawn from the queue, or ''
-- Returns {0} if the key is not this token's; {1, 0} if the lock is free now;
-- {1, 1, fence, server time} if the next one has it;
-- {1, 2, ttl in ms, server time} if somebody else has it and the next one is queued,
-- {1, 3, ...} if it could not be queued.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end

if ARGV[5] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[5]) end
if not held or not owns(held, ARGV[1]) then return {0} end

-- From here on nothing may keep the lock from being freed: refusals are caught,
-- and where handing over was refused the lock is deleted. ZPOPMIN comes first and
-- is a write, after which Redis refuses no more for want of memory.
local ticket, token, ttl, channel, metadata = first_in_queue(ARGV[2])
if not ticket and ARGV[2] ~= '' then
  ticket = ARGV[2]
  token, ttl, channel, metadata = parse(ticket)
end
local own, now, fence = ticket == ARGV[2], ticket and server_time(), false
if ticket then
  fence = hand_over(token, ttl, not own and channel, metadata, ARGV[4], now)
end
if not fence then
  redis.call('DEL', KEYS[1])
  return {1, 0}
end
if own then return {1, 1, fence, now} end
local queued = ARGV[2] ~= '' and ARGV[3] ~= '0' and enqueue(ARGV[2], now, ARGV[3])
return {1, queued and 2 or 3, ttl, now}
