-- The queue: a sorted set of tickets.
--
-- A ticket is "token ttl n m inbox[ metadata]": all that is needed to acquire the
-- lock for a process that waits. It is told on the channel whose name is the prefix
-- of the lock's key, "inbox:", and the inbox. "-" is none. n is the length of the
-- prefix and m that of the name behind it. They are counted from the end of the key,
-- because a hook of the client may put a prefix of its own before the keys of a
-- script, which a subscription does not pass.
-- Up to 64 bytes, a few tickets make a compact sorted set.

-- The token of a ticket, and the channel of its inbox.
local function parse(ticket)
  local token, n, m, inbox = string.match(ticket, '^(%S+) %d+ (%d+) (%d+) (%S+)')
  if not token then return nil end
  return token, string.sub(KEYS[1], -n - m, -m - 1) .. 'inbox:' .. inbox
end

-- Puts a ticket into the queue at a place (us); it keeps the one it has. Returns
-- whether that was done: a refusal must not fail the script, which has written.
-- Every change sets anew how long the queue lives, by the pauses of the one that
-- made it. One that pauses longer and loses its ticket finds out when it asks.
local function enqueue(ticket, place, lifetime)
  if type(redis.pcall('ZADD', KEYS[3], 'NX', place, ticket)) == 'table' then return false end
  redis.call('PEXPIRE', KEYS[3], lifetime)
  return true
end
