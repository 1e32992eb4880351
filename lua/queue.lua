-- Stands before what hands the lock over.
--
-- A ticket is "token ttl n m inbox[ metadata]": all that is needed to acquire the
-- lock for a process that waits. It is told on the channel whose name is the prefix
-- of the lock's key, "inbox:", and the inbox. "-" is none. n is the length of the
-- prefix and m that of the name behind it. They are counted from the end of the key,
-- because a hook of the client may put a prefix of its own before the keys of a
-- script, which a subscription does not pass.
-- Up to 64 bytes, a few tickets make a compact sorted set.

local function parse(ticket)
  local token, ttl, n, m, inbox, metadata = string.match(ticket, '^(%S+) (%d+) (%d+) (%d+) (%S+)(.*)$')
  if not token then return nil end
  return token, ttl, string.sub(KEYS[1], -n - m, -m - 1) .. 'inbox:' .. inbox, metadata
end

-- Whether anybody still listens. The count that PUBLISH returns would include
-- those who only watch, with PSUBSCRIBE.
local function is_live(channel)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return not reply.err and tonumber(reply[2]) > 0
end

-- Returns the first live ticket of the queue with its parts, beginning with the one
-- that was popped already; those before it whose inbox nobody listens to are gone. On a
-- cluster they may listen on another node, from which the slot has moved: they are told
-- to ask again. own is that of the process which asks, and so is live. A thousand dead
-- processes at the head of one queue are as good as a bound. An error counts as an
-- empty queue.
local function first_in_queue(ticket, own)
  for _ = 1, 1000 do
    if not ticket then return nil end
    local token, ttl, channel, metadata = parse(ticket)
    if ticket == own or token and is_live(channel) then
      return ticket, token, ttl, channel, metadata
    end
    if token then redis.pcall('PUBLISH', channel, token .. ' 0 0') end
    ticket = redis.pcall('ZPOPMIN', KEYS[3])[1]
  end
  return nil
end

-- Sets the lock to a ticket, and tells its process unless channel is nil. Returns
-- the fence, or false if anything was refused: the lock does not stand for the
-- ticket then, and has to be freed.
local function hand_over(token, ttl, channel, metadata, retention, now)
  if #ttl > #retention or #ttl == #retention and ttl > retention then retention = ttl end
  local minted, fence = pcall(mint_fence, retention, now)
  if not minted or redis.pcall('SET', KEYS[1], token .. metadata, 'PX', ttl).err then return false end
  if channel then
    local told = redis.pcall('PUBLISH', channel, token .. ' ' .. fence .. ' ' .. now)
    if type(told) == 'table' then return false end
  end
  return fence
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

-- A roll-call. One that finds the lock free while others are queued has found somebody
-- who does not answer: a holder whose lease has ended. It may have had its lock from the
-- queue, as a process that is frozen, or on a machine that has vanished: Redis counts its
-- inbox as subscribed all the same. How many more of these are in the queue nobody can
-- see. So all who are queued are told to ask again, and are queued anew as they ask, at
-- the places they had. Until roll_call ms are over, or all have answered, the lock holds
-- a mark (value.lua): until when (us), and how many have been called. Then the first who
-- has answered has it. Should nobody ask then, the lock is free again when roll_lifetime
-- ms are over.
--
-- To give it to the one that asks would cost less, but break the order whenever a holder
-- dies. So it would if the one that asks had the first place: those behind it may come
-- back in any order, and a newcomer before them, if its section is short. To hand it to
-- the first in the queue cost a lease for each that is frozen.
local roll_call, roll_lifetime = 50, 250

-- Empties the queue, and tells all in it to ask again, but for own, which is the ticket of
-- the one that asks. Returns how many others may answer. A thousand are told; what is
-- beyond asks by itself in time. Where nobody can be told, nobody may answer.
local function call_the_roll(own)
  local queue = redis.pcall('ZPOPMIN', KEYS[3], 1000)
  if queue.err then return 0 end
  redis.pcall('DEL', KEYS[3])
  local others = 0
  for i = 1, #queue, 2 do
    local token, _, channel = parse(queue[i])
    if token and queue[i] ~= own then
      if type(redis.pcall('PUBLISH', channel, token .. ' 0 0')) == 'table' then return 0 end
      if is_live(channel) then others = others + 1 end
    end
  end
  return others
end

local function roll_mark(now, called)
  return mark('roll', string.format('%.0f:%d', tonumber(now) + roll_call * 1000, called))
end

-- Returns whether what the lock holds is a roll-call that is over, and how long one that
-- goes on does so (ms), if it needs somebody who asks then. A few are enough for that.
local function roll_state(held, now)
  local ends, called = string.match(held, '^roll:(%d+):(%d+)$')
  if not ends then return false end
  local answered = redis.pcall('ZCARD', KEYS[3])
  if type(answered) ~= 'number' then answered = 0 end
  if now >= ends or answered >= tonumber(called) then return true end
  return false, answered <= 3 and math.ceil((tonumber(ends) - tonumber(now)) / 1000) or nil
end
