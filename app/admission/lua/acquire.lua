-- Reserve a place for one request of a tenant. Time is the server's, whatever the callers' clocks.
-- ARGV: tenant, request, concurrency limit, queue depth limit, lease_ms
-- Returns {'ok'}, or what refuses it: {'concurrency', in flight}, or {'queue', waiting, ms that the
-- oldest of the queue has waited}. A repeated call keeps the one place.
local tenant, request = ARGV[1], ARGV[2]
local lease_ms, now = tonumber(ARGV[5]), now_ms()
local places = key('admission', tenant)

redis.call('ZREMRANGEBYSCORE', places, '-inf', int(now))
if not redis.call('ZSCORE', places, request) then
  local in_flight = redis.call('ZCARD', places)
  if in_flight >= tonumber(ARGV[3]) then
    return {'concurrency', in_flight}
  end
  local queue = key('queue', tenant)
  local depth = redis.call('ZCARD', queue)
  if depth >= tonumber(ARGV[4]) then
    local oldest = redis.call('ZRANGE', queue, 0, 0)[1]
    local arrived_ms = oldest and redis.call('HGET', key('request', oldest), 'arrived_ms')
    return {'queue', depth, now - tonumber(arrived_ms or now)}
  end
end
redis.call('ZADD', places, int(now + lease_ms), request)
redis.call('PEXPIRE', places, lease_ms)
return {'ok'}
