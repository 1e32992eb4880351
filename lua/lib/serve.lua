-- What hands the lock over.

-- Gives the lock to the first live ticket of the queue, beginning with the one that was
-- popped already, or else to own, the ticket of the caller, which is live; own is nil if
-- it has none. Returns the ticket that has the lock now, its fence and its ttl; nothing if
-- there is none, or anything was refused: the lock has to be freed then.
--
-- Tickets before it whose inbox nobody listens to are gone. (The count that PUBLISH
-- returns would include clients that only watch, with PSUBSCRIBE.) On a cluster they may
-- listen on another node, from which the slot has moved: they are told to ask again. A
-- thousand dead processes at the head of one queue are as good as a bound. An error counts
-- as an empty queue.
--
-- It is one function with all that it needs: to make a function costs as much as a
-- command, in a script for which a server keeps everybody waiting. For the same reason
-- replies are one text, or the number 1: a table is turned into a reply element by
-- element.
local function serve(ticket, own, now, retention)
  local last = redis.pcall('GET', KEYS[2])
  if type(last) == 'table' then return end
  -- As mint_fence does.
  local fence = now
  if last and #last >= #now and (#last > #now or last >= now) then
    fence = string.format('%.0f', math.max((tonumber(last) or 0) + 1, tonumber(now)))
  end
  for n = 1, 1001 do
    if n == 1001 and own then redis.pcall('ZREM', KEYS[3], own) end
    if n == 1001 or not ticket then ticket = own end
    if not ticket then return end
    local token, ttl, prefix, name, inbox, metadata = string.match(ticket, '^(%S+) (%d+) (%d+) (%d+) (%S+)(.*)$')
    local channel = token and string.sub(KEYS[1], -prefix - name, -name - 1) .. 'inbox:' .. inbox
    local live = ticket == own
    if token and not live then
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', channel)
      live = not listeners.err and tonumber(listeners[2]) > 0
    end
    if live then
      if #ttl > #retention or #ttl == #retention and ttl > retention then retention = ttl end
      -- The fence comes first: no lock stands without its own.
      if redis.pcall('SET', KEYS[2], fence, 'PX', retention).err
        or redis.pcall('SET', KEYS[1], token .. metadata, 'PX', ttl).err
        or ticket ~= own and type(redis.pcall('PUBLISH', channel, token .. ' ' .. fence .. ' ' .. now)) ~= 'number' then
        return
      end
      return ticket, fence, ttl
    end
    if token then redis.pcall('PUBLISH', channel, token .. ' 0 0') end
    ticket = redis.pcall('ZPOPMIN', KEYS[3])[1]
  end
end
