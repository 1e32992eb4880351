-- Takes the lock, or finds that it is already this token's. A request that is
-- repeated after a lost reply therefore succeeds, with the same fence. If
-- somebody else holds the lock, or waits for it longer, the ticket is queued.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- ARGV[1] token, ARGV[2] token with metadata, ARGV[3] ttl ms, ARGV[4] fence retention ms;
-- and where there is a ticket: ARGV[5] it, ARGV[6] queue lifetime ms, ARGV[7] its place
-- in the queue, 0: the last, ARGV[8] an earlier one to be withdrawn or ''
-- Returns "fence time" with the server's time in us, or "fence" alone if it is the time;
-- else "0 left time queued": the holder's remaining lease in ms (-1: endless), the time,
-- and 1 if the ticket is queued.
--
-- This part is for a lock that is free and not waited for. Everything that is only
-- read comes first, so that a refusal leaves nothing behind.

local waited = redis.call('EXISTS', KEYS[3]) == 1
local time = redis.call('TIME')
local now = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
local last = redis.call('GET', KEYS[2])
local taken = redis.pcall('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3])
local refusal = taken and taken.err

if taken and not refusal and not waited and (not last or #last == #now and last < now) then
  -- No lock stands without its fence.
  local kept = redis.pcall('SET', KEYS[2], now, 'PX', ARGV[4])
  if not kept.err then return now end
  redis.call('DEL', KEYS[1])
  return redis.error_reply(kept.err)
end
