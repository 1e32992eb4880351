-- Frees a node that granted a vote to an attempt which got no majority. A later
-- attempt under the same token raises the record above the bound before it counts
-- on this node: from then on this request does nothing, however late it comes.
--
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] token, ARGV[2] bound: the greatest fence that the attempt was given
-- Returns "1" if the node was freed, or "0".

-- include: value
-- include: fence
-- include: raise

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return redis.error_reply(held.err) end
if not held or not owns(held, ARGV[1]) then return '0' end
local fence = redis.call('GET', KEYS[2])
if not fence or below(ARGV[2], fence) then return '0' end
redis.call('DEL', KEYS[1])
return '1'
