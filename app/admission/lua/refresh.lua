-- Keep the places of requests that are still in flight.
-- ARGV: lease_ms, (tenant, request) *
-- Returns how many were kept. A place that expired is taken again: the request does run.
local lease_ms, now = tonumber(ARGV[1]), now_ms()
local num_kept = 0
for i = 2, #ARGV, 2 do
  local places = key('admission', ARGV[i])
  redis.call('ZADD', places, int(now + lease_ms), ARGV[i + 1])
  redis.call('PEXPIRE', places, lease_ms)
  num_kept = num_kept + 1
end
return num_kept
