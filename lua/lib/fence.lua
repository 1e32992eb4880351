-- Fences and their record. Times and fences are microseconds since 1970 and stay text
-- where they can: turned into numbers they would be exact (51 bits), but slow. Text of the
-- same length compares as its number does.

local function server_time()
  local time = redis.call('TIME')
  return time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
end

-- The fence follows the clock, so that it grows when the record was lost, and
-- stays above the record, so that it grows when the clock was set back.
local function mint_fence(retention, now)
  local fence, last = now, redis.call('GET', KEYS[2])
  if last and #last >= #now and (#last > #now or last >= now) then
    fence = string.format('%.0f', math.max((tonumber(last) or 0) + 1, tonumber(now)))
  end
  redis.call('SET', KEYS[2], fence, 'PX', retention)
  return fence
end

-- The record of the fence lives as long as the lease, and never shorter than it
-- was to live already.
local function keep_fence(retention)
  if redis.call('PTTL', KEYS[2]) < tonumber(retention) then
    redis.call('PEXPIRE', KEYS[2], retention)
  end
end

-- The fence of the lock that is held, from its record. Where that is gone all the
-- same (evicted, deleted), a new one takes its place.
local function current_fence(fence, retention)
  if not fence then return mint_fence(retention, server_time()) end
  keep_fence(retention)
  return fence
end
