-- Goes on where acquire.lua found the lock held, or free while others wait for it.

local ticket = ARGV[5] or ''

-- Ends an acquisition whose lock stands. Where its fence is refused the lock must
-- not stay.
local function acquired()
  local minted, fence = pcall(mint_fence, ARGV[4], now)
  if minted then return fence .. ' ' .. now end
  redis.call('DEL', KEYS[1])
  return redis.error_reply(type(fence) == 'table' and fence.err or fence)
end

if taken and not refusal then
  if not waited then return acquired() end
  -- The lock was free because a lease ended, or was deleted by somebody who does
  -- not serve the queue. Those who wait come first, if we can tell them.
  local first, token, ttl, channel, metadata = first_in_queue(redis.pcall('ZPOPMIN', KEYS[3])[1], ticket)
  if not first or first == ticket
    or not hand_over(token, ttl, channel, metadata, ARGV[4], now) then
    -- Others could not be told, and our own ticket may be behind theirs.
    if first and first ~= ticket and ticket ~= '' then
      redis.pcall('ZREM', KEYS[3], ticket)
    end
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    return acquired()
  end
else
  local held = redis.pcall('GET', KEYS[1])
  if type(held) == 'table' then return redis.error_reply(held.err) end
  -- Without memory to take a lock, one that is held is still the token's, or waited for.
  if refusal and not (held and string.find(refusal, 'OOM', 1, true)) then
    return redis.error_reply(refusal)
  end
  if held and owns(held, ARGV[1]) then
    -- Never shortens: a repeated request may arrive after an extension. A lease that
    -- is as long is written all the same, so that WAIT has something to wait for.
    if redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[3]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[3])
    end
    return current_fence(last, ARGV[4]) .. ' ' .. now
  end
end

local queued = 0
if ticket ~= '' then
  if ARGV[8] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[8]) end
  -- A ticket whose inbox is not subscribed on this server would be passed over.
  local _, _, channel = parse(ticket)
  local place = ARGV[7] == '0' and now or ARGV[7]
  if is_live(channel) and enqueue(ticket, place, ARGV[6]) then queued = 1 end
end
return '0 ' .. redis.call('PTTL', KEYS[1]) .. ' ' .. now .. ' ' .. queued
