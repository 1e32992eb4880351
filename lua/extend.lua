-- Renews the lease, if the key still holds the token.
--
-- KEYS[1] lock, KEYS[2] fence; or the lock alone, see release.lua: the record of
-- the fence is left as it is then, and 1 returned
-- ARGV[1] token, ARGV[2] ttl ms, ARGV[3] fence retention ms, ARGV[4] 'set' or 'grow'
-- Returns "1 fence" (with 'grow': 1); "0 1 record" with the last fence, or nothing, if
-- the lock is free; "0" if somebody else has it. (Only a quorum needs to tell these two
-- apart.)

-- include: value
-- include: absent
-- include: fence

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
if not held then return not_held('0 1 ' .. (KEYS[2] and redis.call('GET', KEYS[2]) or '')) end
if not owns(held, ARGV[1]) then return not_held('0') end

-- PEXPIRE and not SET: it works while Redis is out of memory. What can raise an
-- error is read before, and the fence is minted after, when writes are not refused.
if ARGV[4] == 'set' and KEYS[2] then
  local fence = redis.call('GET', KEYS[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return '1 ' .. current_fence(fence, ARGV[3])
end

-- A renewal by the watchdog never shortens: it may arrive late, behind an
-- extension that its holder relies on.
if ARGV[4] == 'set' or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if KEYS[2] then keep_fence(ARGV[3]) end
return 1
