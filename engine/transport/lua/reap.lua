-- Forget an engine that is gone (or says goodbye), and whatever is still leased to it.
-- ARGV: engine, boot of the one that says goodbye ('' where it is silent)
-- Returns the number of leases that went with it, or -1 where the engine is alive after all.
local engine, boot = ARGV[1], ARGV[2]
local current = redis.call('HGET', key('engine', engine), 'boot')
if current and current ~= boot then
  return -1
end
redis.call('SREM', key('engines'), engine)
redis.call('ZREM', key('idle'), engine)
redis.call('DEL', key('engine', engine), key('control', engine), key('resident', engine),
  key('grant', engine))
if boot ~= '' then
  return 0  -- its leases stay, for the API processes that own them to end
end
local num_leases = 0
local leases = redis.call('HGETALL', key('leases'))
for i = 1, #leases, 2 do
  local _, _, lease_engine = parse_lease(leases[i + 1])
  if lease_engine == engine then
    redis.call('HDEL', key('leases'), leases[i])
    redis.call('DEL', key('request', leases[i]))
    num_leases = num_leases + 1
  end
end
return num_leases
