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
-- What is leased to one that says goodbye stays, for the API processes that own it to end; of what
-- none of them ends, because they are gone too, the body expires, and the lease goes with the next
-- engine.
local LEFT_TTL_MS = 600000
local num_leases = 0
local leases = redis.call('HGETALL', key('leases'))
for i = 1, #leases, 2 do
  local request, body = leases[i], key('request', leases[i])
  local _, _, lease_engine = parse_lease(leases[i + 1])
  if lease_engine == engine and boot ~= '' then
    redis.call('PEXPIRE', body, LEFT_TTL_MS)
  elseif lease_engine == engine then
    redis.call('HDEL', key('leases'), request)
    redis.call('DEL', body)
    num_leases = num_leases + 1
  elseif redis.call('EXISTS', body, key('engine', lease_engine)) == 0 then
    redis.call('HDEL', key('leases'), request)
  end
end
return num_leases
