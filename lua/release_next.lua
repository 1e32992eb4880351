-- Goes on where somebody may be waiting for the lock that release.lua is to free.

if type(held) == 'table' then return redis.error_reply(held.err) end

local brought, own = ARGV[3] or '', ARGV[5] or ''
if own ~= '' then redis.pcall('ZREM', KEYS[3], own) end
if not held or not owns(held, ARGV[1]) then return not_held() end

-- From here on nothing may keep the lock from being freed: refusals are caught,
-- and where handing over was refused the lock is deleted. ZPOPMIN comes first and
-- is a write, after which Redis refuses no more for want of memory.
local ticket, token, ttl, channel, metadata = first_in_queue(redis.pcall('ZPOPMIN', KEYS[3])[1], brought)
if not ticket and brought ~= '' then
  ticket = brought
  token, ttl, channel, metadata = parse(ticket)
end
local mine, now, fence = ticket == brought, ticket and server_time(), false
if ticket then
  fence = hand_over(token, ttl, not mine and channel, metadata, ARGV[2], now)
end
if not fence then
  redis.call('DEL', KEYS[1])
  return '1 0'
end
if mine then return '1 1 ' .. fence .. ' ' .. now end
local queued = brought ~= '' and ARGV[4] ~= '0' and enqueue(brought, now, ARGV[4])
return '1 ' .. (queued and 2 or 3) .. ' ' .. ttl .. ' ' .. now
