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

-- Puts the ticket into the queue, if there is one, and returns whether it stands there.
local function wait()
  if ticket == '' then return false end
  if ARGV[8] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[8]) end
  -- A ticket whose inbox is not subscribed on this server would be passed over.
  local _, _, channel = parse(ticket)
  return is_live(channel) and enqueue(ticket, ARGV[7] == '0' and now or ARGV[7], ARGV[6])
end

-- Leaves the queue for a lock that is taken past those in it, who could not be told.
local function leave()
  if ticket ~= '' then redis.pcall('ZREM', KEYS[3], ticket) end
end

local queued, left = false, nil

if taken and not refusal then
  -- The lock was free because a lease ended, or was deleted by somebody who does not
  -- serve the queue.
  local others = waited and call_the_roll(ticket) or 0
  if others == 0 then return acquired() end
  queued = wait()
  local called = roll_mark(now, others + (queued and 1 or 0))
  if redis.pcall('SET', KEYS[1], called, 'PX', roll_lifetime).err then
    leave()
    return acquired()
  end
  left = roll_call
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
  queued = wait()
  local over
  over, left = roll_state(held or '', now)
  if over then
    -- The first of those who have answered has the lock.
    local first, token, ttl, channel, metadata = first_in_queue(redis.pcall('ZPOPMIN', KEYS[3])[1], ticket)
    if not first or first == ticket or not hand_over(token, ttl, channel, metadata, ARGV[4], now) then
      leave()
      local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
      if set.err then return redis.error_reply(set.err) end
      return acquired()
    end
  end
end
return '0 ' .. (left or redis.call('PTTL', KEYS[1])) .. ' ' .. now .. ' ' .. (queued and 1 or 0)
