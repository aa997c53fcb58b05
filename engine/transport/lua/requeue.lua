-- The API process that owns a request puts it into its queue once more: its engine is gone, handed
-- it over or cannot be followed, or this server lost it. From then on its old engine is not heard.
-- ARGV: the arguments of enqueue.lua, is_forced ('1': whoever has the request loses it),
--       the Abort of its lease until now, sealed
-- Returns 'queued', or 'known' where it is done already (a repeated call does nothing). Unless
-- forced: 'alive' where the engine lives after all, 'gone' where the request is not here.
local request, tenant, epoch, is_forced = ARGV[1], ARGV[2], tonumber(ARGV[8]), ARGV[14] == '1'
local body, leases = key('request', request), key('leases')
local lease = redis.call('HGET', leases, request)
local body_epoch = tonumber(redis.call('HGET', body, 'epoch') or -1)
local is_queued = redis.call('ZSCORE', key('queue', tenant), request)

if lease then
  local lease_epoch, boot, engine = parse_lease(lease)
  if lease_epoch > epoch then
    return 'known'
  elseif not is_forced and is_alive(engine, boot) then
    return 'alive'
  end
  redis.call('HDEL', leases, request)
  push_control(engine, ARGV[15])
elseif is_queued and body_epoch >= epoch then
  return 'known'
elseif not is_forced then
  return 'gone'
end
local arrival = redis.call('HGET', body, 'arrival')
redis.call('DEL', body)
push_request(arrival)
return 'queued'
