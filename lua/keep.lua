-- A release of a lock that has a minimal hold. Before that is over it leaves the name
-- taken until then. What stands in the key is a mark (value.lua) with
-- the token and its metadata. So the token has no effect any more, a release that is
-- repeated after a lost reply sees that it was made, and Inspect shows the last holder.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue; or the lock alone, see release.lua
-- The arguments are those of the release, and one more at the end: "granted least", the
-- time of the grant by this server's clock, and the minimal hold from there (us).
-- Returns 1 if the name is kept, or with a ticket that the caller brought along
-- "1 2 left time" (ms, us) if it is queued, and "1 3 ..." if it could not be queued. Else
-- the release goes on.

-- include: value
-- include: fence
-- include: queue

local granted, least = string.match(table.remove(ARGV), '^(%d+) (%d+)$')
local kept, stands, left = 'kept:' .. ARGV[1], redis.pcall('GET', KEYS[1]), nil

if type(stands) == 'string' and owns(stands, kept) then
  left = redis.call('PTTL', KEYS[1])
elseif type(stands) == 'string' and owns(stands, ARGV[1]) then
  -- If the clock was set back, it is no longer than the whole minimal hold from now on.
  local passed = math.max(0, tonumber(server_time()) - tonumber(granted))
  if passed < tonumber(least) then
    left = string.format('%.0f', math.ceil((tonumber(least) - passed) / 1000))
    -- PEXPIRE is a write that Redis permits while it is out of memory, and after it SET.
    -- Where SET is refused all the same, the token stays until then.
    redis.call('PEXPIRE', KEYS[1], left)
    redis.pcall('SET', KEYS[1], kept .. string.sub(stands, #ARGV[1] + 1), 'PX', left)
    -- The record of the fence outlives the key, as that of a lease does.
    if KEYS[2] and redis.call('PTTL', KEYS[2]) < left + 1000 then
      redis.pcall('PEXPIRE', KEYS[2], string.format('%.0f', left + 1000))
    end
  end
end

if left then
  if not KEYS[3] then return 1 end
  if ARGV[3] and ARGV[3] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[3]) end
  -- Waiters rely on the lease that they were told, which may have been much longer. So
  -- they are told to ask again: one that lives would suffice, but which of them do nobody
  -- can see. A thousand, as with a roll-call, and they stay in the queue: the mark may be
  -- over before they have come back, and somebody else must not get past them. Those that
  -- are frozen are left behind by the roll-call when it is over.
  local waiting = redis.pcall('ZRANGE', KEYS[3], '0', '999')
  for _, ticket in ipairs(waiting) do
    local token, channel = parse(ticket)
    if token then redis.pcall('PUBLISH', channel, token .. ' 0 0') end
  end
  if not ARGV[4] then return 1 end
  local now = server_time()
  local queued = ARGV[5] ~= '0' and enqueue(ARGV[4], now, ARGV[5])
  return '1 ' .. (queued and 2 or 3) .. ' ' .. left .. ' ' .. now
end

-- include: release
