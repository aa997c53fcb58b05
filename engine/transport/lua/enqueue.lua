-- Accept one request into its tenant's queue, and wake an idle engine.
-- ARGV: request, tenant, api, message, prompt_tokens, max_tokens, adapter, epoch
-- Returns 'queued', or 'known' where the request is here already (a repeated call does nothing).
local request, tenant = ARGV[1], ARGV[2]
local body = key('request', request)
if redis.call('EXISTS', body) == 1 then
  return 'known'
end

redis.call('HSET', body, 'tenant', tenant, 'api', ARGV[3], 'message', ARGV[4],
  'prompt_tokens', ARGV[5], 'max_tokens', ARGV[6], 'adapter', ARGV[7], 'epoch', ARGV[8],
  'arrived_ms', int(now_ms()))
redis.call('ZADD', key('queue', tenant), redis.call('INCR', key('arrivals')), request)

-- Lift on re-entry: whoever was away gets no credit for it. With nobody waiting, the counter of
-- the last tenant served stands for those who were.
if not redis.call('ZSCORE', key('tenants'), tenant) then
  local least = redis.call('ZRANGE', key('tenants'), 0, 0, 'WITHSCORES')[2]
  local level = tonumber(least or redis.call('GET', key('level')) or 0)
  local own = tonumber(redis.call('HGET', key('vtc'), tenant) or 0)
  local counter = int(math.max(own, level))
  redis.call('HSET', key('vtc'), tenant, counter)
  redis.call('ZADD', key('tenants'), counter, tenant)
end

-- The roomiest idle engine that lives. One without room for it only asks once in vain; one whose
-- heartbeat is late is woken too, but not relied on.
local idle = key('idle')
for _, engine in ipairs(redis.call('ZREVRANGE', idle, 0, -1)) do
  redis.call('ZREM', idle, engine)
  push_control(engine, {type = 'wake'})
  if redis.call('EXISTS', key('engine', engine)) == 1 then
    break
  end
end
return 'queued'
