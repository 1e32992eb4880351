-- Stands before what renews a lock that is held.

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
