-- How much waits, and how fast it goes: what a new request of a tenant would have before it.
-- ARGV: tenant
-- Returns {requests in the queue, tenants with one, requests of this tenant, requests leased a
-- second ('' where unknown)}.
local tenant = ARGV[1]
local num_tenants = math.max(redis.call('ZCARD', STANDARD), redis.call('ZCARD', FLEX))
return {
  tonumber(redis.call('GET', key('num_queued')) or 0),
  num_tenants,
  redis.call('ZCARD', key('queue', tenant)),
  redis.call('HGET', key('service'), 'rate') or '',
}
