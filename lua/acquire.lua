-- Takes the lock, or finds that it is already this token's. A request that is
-- repeated after a lost reply therefore succeeds, with the same fence. If
-- somebody else holds the lock, or waits for it longer, the ticket is queued.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- ARGV[1] token, ARGV[2] token with metadata, ARGV[3] ttl ms, ARGV[4] fence retention ms,
-- ARGV[5] ticket or '', ARGV[6] queue lifetime ms, ARGV[7] its place in the queue, 0: the last
-- Returns {1, fence, server time in us}, or {0, the holder's remaining lease in
-- ms (-1: endless), server time, 1 if the ticket is queued}.

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
local now = server_time()

if held and owns(held, ARGV[1]) then
  -- Never shortens: a repeated request may arrive after an extension.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  return {1, current_fence(redis.call('GET', KEYS[2]), ARGV[4]), now}
end

if not held then
  -- The lock is free because a lease ended, or was deleted by somebody who does
  -- not serve the queue. Those who wait come first, if we can tell them. EXISTS asks
  -- first: after ZPOPMIN, a write, Redis would not refuse the rest for want of memory.
  local ticket, token, ttl, channel, metadata
  if redis.call('EXISTS', KEYS[3]) == 1 then
    ticket, token, ttl, channel, metadata = first_in_queue(ARGV[5])
  end
  if not ticket or ticket == ARGV[5]
    or not hand_over(token, ttl, channel, metadata, ARGV[4], now) then
    -- Others could not be told, and our own ticket may be behind theirs.
    if ticket and ticket ~= ARGV[5] and ARGV[5] ~= '' then
      redis.pcall('ZREM', KEYS[3], ARGV[5])
    end
    -- The fence is written first: if the second write is refused, a number is
    -- skipped. The other way round a lock could stand without its fence.
    local fence = mint_fence(ARGV[4], now)
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    return {1, fence, now}
  end
end

local queued = 0
if ARGV[5] ~= '' then
  -- A ticket whose inbox is not subscribed on this server would be passed over.
  local _, _, channel = parse(ARGV[5])
  local place = ARGV[7] == '0' and now or ARGV[7]
  if is_live(channel) and enqueue(ARGV[5], place, ARGV[6]) then queued = 1 end
end
return {0, redis.call('PTTL', KEYS[1]), now, queued}
