-- Take a request back, wherever it is.
-- ARGV: request, only_queued ('1' or '0'), engine (where its output came from, or ''), the Abort of
--       its lease, sealed ('': its engine learns when it speaks next)
-- Returns 'queued': it was waiting. 'leased': its engine was told (or, with only_queued, left
-- alone). 'lost': its engine is dead. 'unknown': not here. Nothing of it stays, bar the word to
-- its engine: nobody wants its output, so there is nothing left to wait for.
local request, only_queued = ARGV[1], ARGV[2] == '1'
local body = key('request', request)
local lease = redis.call('HGET', key('leases'), request)
if lease then
  if only_queued then
    return 'leased'
  end
  local _, boot, engine = parse_lease(lease)
  push_control(engine, ARGV[4])
  redis.call('HDEL', key('leases'), request)
  redis.call('DEL', body)
  return is_alive(engine, boot) and 'leased' or 'lost'
end
local tenant = redis.call('HGET', body, 'tenant')
if tenant then
  remove_from_queue(tenant, request)
  redis.call('DEL', body)
  return 'queued'
end
if ARGV[3] ~= '' and not only_queued then  -- a Redis that lost its leases: the engine runs on
  push_control(ARGV[3], ARGV[4])
end
return 'unknown'
