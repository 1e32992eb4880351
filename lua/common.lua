-- Stands before what the scripts of this folder do in the less frequent cases. In
-- all of them KEYS[1] is the lock, KEYS[2] the fence and KEYS[3], where it is used,
-- the queue.
--
-- A script is a run of the Lua interpreter in a server that serves nobody else
-- meanwhile. So the frequent case of acquire.lua and release.lua stands by itself
-- before all this, and returns before functions are made that it does not need.
-- Replies are one text, since a table is turned into a reply element by element; or, in
-- the most frequent cases, the number 1.
--
-- Times and fences are microseconds since 1970 and stay text where they can: turned
-- into numbers they would be exact (51 bits), but slow. Text of the same length
-- compares as its number does.

-- Gives the answer that a lock is not the token's. A replica must not, since it may be
-- behind, and a client that has missed a fail-over may still ask it: it refuses to write,
-- even what changes nothing. (On a primary this is refused as well if the lock is held,
-- for it is no sorted set.)
local function not_held(answer)
  local written = redis.pcall('ZREM', KEYS[1], '')
  if type(written) == 'table' and string.find(written.err, 'READONLY', 1, true) then
    return redis.error_reply(written.err)
  end
  return answer
end

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
