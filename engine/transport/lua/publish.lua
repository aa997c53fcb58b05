-- Append one entry per API process and what was used, and end the leases of what finished, all at
-- once: what a client can get and what the ledger will say are never apart.
-- ARGV: max_entries, ttl_ms, num_batches, (api, payload) * num_batches,
--       num_records, (request, epoch, record) * num_records, (request, epoch) *
-- Repeating it is harmless: readers drop the indexes they have, a lease ends once, and records
-- hold absolute counts.
local max_entries, ttl_ms, num_batches = ARGV[1], ARGV[2], tonumber(ARGV[3])
local at = 4
for _ = 1, num_batches do
  local out = key('out', ARGV[at])
  redis.call('XADD', out, 'MAXLEN', '~', max_entries, '*', 'batch', ARGV[at + 1])
  redis.call('PEXPIRE', out, ttl_ms)
  at = at + 2
end

-- An engine that lost the request to another one, or to the queue, has no say in its bill. Where
-- nobody has it (it was aborted, or this server lost its data), the engine that ran it has.
local function may_record(request, epoch)
  local lease = redis.call('HGET', key('leases'), request)
  if lease then
    return parse_lease(lease) == epoch
  end
  return redis.call('EXISTS', key('request', request)) == 0
end

local num_records = tonumber(ARGV[at])
at = at + 1
for _ = 1, num_records do
  if may_record(ARGV[at], tonumber(ARGV[at + 1])) then
    redis.call('XADD', key('usage'), '*', 'record', ARGV[at + 2])
  end
  at = at + 3
end

for i = at, #ARGV, 2 do
  local lease = redis.call('HGET', key('leases'), ARGV[i])
  if lease and parse_lease(lease) == tonumber(ARGV[i + 1]) then  -- an old epoch ends nothing
    redis.call('HDEL', key('leases'), ARGV[i])
    redis.call('DEL', key('request', ARGV[i]))
  end
end
return num_batches
