-- Takes the lock, or finds that it is already this token's. A request that is
-- repeated after a lost reply therefore succeeds, with the same fence. If
-- somebody else holds the lock, or waits for it longer, the ticket is queued.
--
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue
-- ARGV[1] token, ARGV[2] token with metadata, ARGV[3] ttl ms, ARGV[4] fence retention ms;
-- and where there is a ticket: ARGV[5] it, ARGV[6] queue lifetime ms, ARGV[7] its place
-- in the queue, 0: the last, ARGV[8] an earlier one to be withdrawn or ''
-- Returns "fence time" with the server's time in us, or "fence" alone if it is the time;
-- else "0 left time queued": the holder's remaining lease in ms (-1: endless), the time,
-- and 1 if the ticket is queued.
--
-- The first part is for a lock that is free and not waited for, and returns before
-- functions are made that it does not need: a server that runs a script serves nobody
-- else. Everything that is only read comes first, so that a refusal leaves nothing behind.

local waited = redis.call('EXISTS', KEYS[3]) == 1
local time = redis.call('TIME')
local now = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
local last = redis.call('GET', KEYS[2])
local taken = redis.pcall('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3])
local refusal = taken and taken.err

if taken and not refusal and not waited and (not last or #last == #now and last < now) then
  -- No lock stands without its fence.
  local kept = redis.pcall('SET', KEYS[2], now, 'PX', ARGV[4])
  if not kept.err then return now end
  redis.call('DEL', KEYS[1])
  return redis.error_reply(kept.err)
end

-- The lock is held, or free while others wait for it.

-- include: value
-- include: fence
-- include: queue
-- include: serve

-- Whether anybody still listens. The count that PUBLISH returns would include
-- clients that only watch, with PSUBSCRIBE.
local function is_live(channel)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return not reply.err and tonumber(reply[2]) > 0
end

-- A roll-call. One that finds the lock free while others are queued has found somebody
-- that does not answer: a holder whose lease has ended. It may have had its lock from the
-- queue, as a process that is frozen, or on a machine that has vanished: Redis counts its
-- inbox as subscribed all the same. How many more of these are in the queue nobody can
-- see. So all that are queued are told to ask again, and are queued anew as they ask, at
-- the places they had. Until roll_call ms are over, or all have answered, the lock holds
-- a mark (value.lua): until when (us), and how many have been called. Then the first that
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
    local token, channel = parse(queue[i])
    if token and queue[i] ~= own then
      if type(redis.pcall('PUBLISH', channel, token .. ' 0 0')) == 'table' then return 0 end
      if is_live(channel) then others = others + 1 end
    end
  end
  return others
end

local function roll_mark(now, called)
  return string.format('roll:%.0f:%d', tonumber(now) + roll_call * 1000, called)
end

-- Returns whether what the lock holds is a roll-call that is over, and how long one that
-- goes on does so (ms), if it needs a waiter that asks then. A few are enough for that.
local function roll_state(held, now)
  local ends, called = string.match(held, '^roll:(%d+):(%d+)$')
  if not ends then return false end
  local answered = redis.pcall('ZCARD', KEYS[3])
  if type(answered) ~= 'number' then answered = 0 end
  if now >= ends or answered >= tonumber(called) then return true end
  return false, answered <= 3 and math.ceil((tonumber(ends) - tonumber(now)) / 1000) or nil
end

local ticket = ARGV[5] or ''

-- Ends an acquisition whose lock stands. Where its fence is refused the lock must
-- not stay.
local function acquired()
  local minted, fence = pcall(mint_fence, ARGV[4], now)
  if minted then return fence .. ' ' .. now end
  redis.call('DEL', KEYS[1])
  return redis.error_reply(type(fence) == 'table' and fence.err or fence)
end

-- Puts the ticket into the queue, if there is one, and returns whether it stands there.
local function wait()
  if ticket == '' then return false end
  if ARGV[8] ~= '' then redis.pcall('ZREM', KEYS[3], ARGV[8]) end
  -- A ticket whose inbox is not subscribed on this server would be passed over.
  local _, channel = parse(ticket)
  return is_live(channel) and enqueue(ticket, ARGV[7] == '0' and now or ARGV[7], ARGV[6])
end

-- Leaves the queue for a lock that is taken past the tickets in it, whose processes could not be told.
local function leave()
  if ticket ~= '' then redis.pcall('ZREM', KEYS[3], ticket) end
end

local queued, left

if taken and not refusal then
  -- The lock was free because a lease ended, or was deleted by a client that does not
  -- serve the queue.
  local others = waited and call_the_roll(ticket) or 0
  if others == 0 then return acquired() end
  queued = wait()
  local called = roll_mark(now, others + (queued and 1 or 0))
  if redis.pcall('SET', KEYS[1], called, 'PX', roll_lifetime).err then
    leave()
    return acquired()
  end
  left = roll_call
else
  local held = redis.pcall('GET', KEYS[1])
  if type(held) == 'table' then return redis.error_reply(held.err) end
  -- Without memory to take a lock, one that is held is still the token's, or waited for.
  if refusal and not (held and string.find(refusal, 'OOM', 1, true)) then
    return redis.error_reply(refusal)
  end
  if held and owns(held, ARGV[1]) then
    -- Never shortens: a repeated request may arrive after an extension. A lease that
    -- is as long is written all the same, so that WAIT has something to wait for.
    if redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[3]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[3])
    end
    return current_fence(last, ARGV[4]) .. ' ' .. now
  end
  queued = wait()
  local over
  over, left = roll_state(held or '', now)
  if over then
    -- The first process that has answered has the lock.
    local first, fence = serve(redis.pcall('ZPOPMIN', KEYS[3])[1], ticket ~= '' and ticket or nil, now, ARGV[4])
    if first and first == ticket then return fence .. ' ' .. now end
    if not first then
      leave()
      local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
      if set.err then return redis.error_reply(set.err) end
      return acquired()
    end
  end
end
return '0 ' .. (left or redis.call('PTTL', KEYS[1])) .. ' ' .. now .. ' ' .. (queued and 1 or 0)
