-- Frees the lock, if the key still holds the token. Compare and delete in one
-- script is the only safe way: between a GET and a DEL the lease can end and
-- somebody else's lock would be deleted.
--
-- The lock then goes to the first in the queue, or else to the ticket that the
-- caller brought along for the next one in its own process. If the queue wins,
-- that ticket is queued.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- ARGV[1] token, ARGV[2] fence retention ms; and where there is more to do: ARGV[3] the
-- token's own ticket, to be withdrawn from the queue, or '', and ARGV[4] ticket of the
-- next one, ARGV[5] queue lifetime ms (0: the next one has no inbox and cannot be
-- queued), ARGV[6] its token with metadata, ARGV[7] its ttl ms
-- Returns "0" if the key is not this token's; 1 if the lock is free now;
-- "1 1 fence time" if the next one has it, without the time if the fence is the time;
-- "1 2 ttl time" (ms, us) if somebody else has it and the next one is queued,
-- "1 3 ..." if it could not be queued.
--
-- This part is for the frequent cases. From where the token was found nothing may keep
-- the lock from being freed: refusals are caught, and left to release_next.lua, which
-- begins anew with the ticket that was popped.

local held, popped, time, now, last = redis.pcall('GET', KEYS[1])
if held == ARGV[1] and (ARGV[3] or '') == '' then
  -- ZPOPMIN is a write, after which Redis refuses no more for want of memory.
  popped = redis.pcall('ZPOPMIN', KEYS[3])[1] or false
  if not popped and not ARGV[4] then
    redis.call('DEL', KEYS[1])
    return 1
  end
  time, last = redis.call('TIME'), redis.pcall('GET', KEYS[2])
  now = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
end

if now and (not last or #last == #now and last < now) then
  if not popped or popped == ARGV[4] then
    -- ARGV[2] is not below its ttl.
    if not redis.pcall('SET', KEYS[2], now, 'PX', ARGV[2]).err
      and not redis.pcall('SET', KEYS[1], ARGV[6], 'PX', ARGV[7]).err then
      return '1 1 ' .. now
    end
  else
    -- See queue.lua, for all that follows.
    local token, ttl, n, m, inbox, metadata = string.match(popped, '^(%S+) (%d+) (%d+) (%d+) (%S+)(.*)$')
    local channel = token and string.sub(KEYS[1], -n - m, -m - 1) .. 'inbox:' .. inbox
    local listeners = token and redis.pcall('PUBSUB', 'NUMSUB', channel)
    local retention = ARGV[2]
    if token and (#ttl > #retention or #ttl == #retention and ttl > retention) then retention = ttl end
    if token and not listeners.err and tonumber(listeners[2]) > 0
      and not redis.pcall('SET', KEYS[2], now, 'PX', retention).err
      and not redis.pcall('SET', KEYS[1], token .. metadata, 'PX', ttl).err
      and type(redis.pcall('PUBLISH', channel, token .. ' ' .. now .. ' ' .. now)) == 'number' then
      if ARGV[4] and ARGV[5] ~= '0' and type(redis.pcall('ZADD', KEYS[3], 'NX', now, ARGV[4])) == 'number' then
        redis.pcall('PEXPIRE', KEYS[3], ARGV[5])
        return '1 2 ' .. ttl .. ' ' .. now
      end
      return '1 3 ' .. ttl .. ' ' .. now
    end
  end
end
