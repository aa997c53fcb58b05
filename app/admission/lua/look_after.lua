-- Reservations that nobody refreshed, to be looked after now, and not again for a while.
-- ARGV: max, again_ms
local now, name = now_ms(), key('reservations')
local ids = redis.call('ZRANGEBYSCORE', name, '-inf', int(now), 'LIMIT', 0, ARGV[1])
for _, id in ipairs(ids) do
  redis.call('ZADD', name, int(now + tonumber(ARGV[2])), id)
end
return ids
