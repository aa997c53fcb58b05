-- An engine is alive for ttl_ms from now; what it generated is charged to its tenants.
-- ARGV: engine, boot, ttl_ms, resident_ttl_ms, num_fields, (field, value) *, (tenant, cost) *
local engine, num_fields = ARGV[1], tonumber(ARGV[5])
local beat = key('engine', engine)
redis.call('HSET', beat, 'boot', ARGV[2])
for i = 6, 4 + 2 * num_fields, 2 do
  redis.call('HSET', beat, ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', beat, ARGV[3])
redis.call('PEXPIRE', key('resident', engine), ARGV[4])
redis.call('SADD', key('engines'), engine)
for i = 6 + 2 * num_fields, #ARGV, 2 do
  charge(ARGV[i], tonumber(ARGV[i + 1]))
end
return 1
