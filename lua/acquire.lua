-- Takes the lock, or finds that it is already this token's. A request that is
-- repeated after a lost reply therefore succeeds, with the same fence.
--
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] token, ARGV[2] token with metadata, ARGV[3] ttl ms, ARGV[4] fence retention ms
-- Returns {1, fence}, or {0, the holder's remaining lease in ms (-1: endless)}.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end

if held and owns(held, ARGV[1]) then
  -- Never shortens: a repeated request may arrive after an extension.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  return {1, current_fence(KEYS[2], ARGV[4])}
end
if held then
  return {0, redis.call('PTTL', KEYS[1])}
end

-- The fence is written first: if the second write is refused, a number is
-- skipped. The other way round a lock could stand without its fence.
local fence = mint_fence(KEYS[2], ARGV[4])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {1, fence}
