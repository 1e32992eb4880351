-- Goes on where release.lua found somebody to hand the lock to.

local ticket, token, ttl, channel, metadata = first_in_queue(popped, brought)
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
