-- Append one entry per API process, and end the leases of what finished, all at once.
-- ARGV: max_entries, ttl_ms, num_batches, (api, payload) * num_batches, (request, epoch) *
-- Repeating it is harmless: readers drop the indexes they have, and a lease ends once.
local max_entries, ttl_ms, num_batches = ARGV[1], ARGV[2], tonumber(ARGV[3])
local at = 4
for _ = 1, num_batches do
  local out = key('out', ARGV[at])
  redis.call('XADD', out, 'MAXLEN', '~', max_entries, '*', 'batch', ARGV[at + 1])
  redis.call('PEXPIRE', out, ttl_ms)
  at = at + 2
end
for i = at, #ARGV, 2 do
  local lease = redis.call('HGET', key('leases'), ARGV[i])
  if lease and parse_lease(lease) == tonumber(ARGV[i + 1]) then  -- an old epoch ends nothing
    redis.call('HDEL', key('leases'), ARGV[i])
    redis.call('DEL', key('request', ARGV[i]))
  end
end
return num_batches
