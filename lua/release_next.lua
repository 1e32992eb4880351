-- Goes on where somebody may be waiting for the lock that release.lua is to free.

if type(held) == 'table' then return redis.error_reply(held.err) end

if ARGV[3] and ARGV[3] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[3]) end
if not held or not owns(held, ARGV[1]) then return not_held('0') end

-- Where handing over is refused the lock is deleted.
if popped == nil then popped = redis.pcall('ZPOPMIN', KEYS[3])[1] end
local brought = ARGV[4]
local ticket, token, ttl, channel, metadata = first_in_queue(popped, brought)
if not ticket and brought then
  -- It may stand in the queue behind more dead ones than are skipped at once.
  if popped then redis.pcall('ZREM', KEYS[3], brought) end
  ticket = brought
  token, ttl, channel, metadata = parse(ticket)
end
local mine, now, fence = ticket == brought, ticket and server_time(), false
if ticket then
  fence = hand_over(token, ttl, not mine and channel, metadata, ARGV[2], now)
end
if not fence then
  redis.call('DEL', KEYS[1])
  return 1
end
if mine then return '1 1 ' .. fence .. ' ' .. now end
local queued = brought and ARGV[5] ~= '0' and enqueue(brought, now, ARGV[5])
return '1 ' .. (queued and 2 or 3) .. ' ' .. ttl .. ' ' .. now
