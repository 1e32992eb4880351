-- Stands before every script of this folder.
-- Numbers stay below 2^53 (microseconds since 1970 have 51 bits), so Lua's
-- doubles hold them exactly; '%.0f' keeps them out of exponent notation.

local function owns(held, token)
  return held == token or string.sub(held, 1, #token + 1) == token .. ' '
end

local function last_fence(key)
  return tonumber(redis.call('GET', key) or 0) or 0
end

-- The fence follows the clock, so that it grows when the record was lost, and
-- stays above the record, so that it grows when the clock was set back.
local function mint_fence(key, retention)
  local time = redis.call('TIME')
  local fence = math.max(last_fence(key) + 1, time[1] * 1000000 + time[2])
  redis.call('SET', key, string.format('%.0f', fence), 'PX', retention)
  return fence
end

-- The fence of the lock that is held. The record lives as long as the lease;
-- where it is gone all the same (evicted, deleted), a new one takes its place.
local function current_fence(key, retention)
  local fence = last_fence(key)
  if fence == 0 then return mint_fence(key, retention) end
  if redis.call('PTTL', key) < tonumber(retention) then
    redis.call('PEXPIRE', key, retention)
  end
  return fence
end
