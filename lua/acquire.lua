-- Takes the lock, or finds that it is already this token's. A request that is
-- repeated after a lost reply therefore succeeds, with the same fence. If
-- somebody else holds the lock, or waits for it longer, the ticket is queued.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- ARGV[1] token, ARGV[2] token with metadata, ARGV[3] ttl ms, ARGV[4] fence retention ms;
-- and where there is a ticket: ARGV[5] it, ARGV[6] queue lifetime ms, ARGV[7] its place
-- in the queue, 0: the last
-- Returns "1 fence time" with the server's time in us; or "0 left time queued": the
-- holder's remaining lease in ms (-1: endless), the time, and 1 if the ticket is queued.

-- Ends an acquisition whose lock stands. Where its fence is refused the lock must
-- not stay.
local function acquired(now)
  local minted, fence = pcall(mint_fence, ARGV[4], now)
  if minted then return '1 ' .. fence .. ' ' .. now end
  redis.call('DEL', KEYS[1])
  return redis.error_reply(type(fence) == 'table' and fence.err or fence)
end

-- Everything that is only read comes first, so that a refusal leaves nothing behind.
local waited = redis.call('EXISTS', KEYS[3]) == 1
local now = server_time()
local taken = redis.pcall('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3])
local refusal = taken and taken.err
taken = taken and not refusal
if taken and not waited then return acquired(now) end
