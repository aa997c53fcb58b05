-- This server lost what it knew of a tenant, or never knew: take it from the ledger.
-- ARGV: {tenant_id, version, figures, open = [{id, subjects, tokens, cost, day}], look_ms,
--        lately = [{subject, age_ms, requests, tokens}]}
-- Returns 1; 0 where the ledger has moved on since it was read: read it again. Reservations that
-- exist are kept as they are; the windows of the last minute are filled once.
local given, now = cmsgpack.unpack(ARGV[1]), now_ms()
local tenant = key('spent', 'tenant:' .. given.tenant_id)
if tonumber(redis.call('HGET', tenant, 'v') or -1) > given.version then
  return 0
end
put_spent(given.figures)
for _, each in ipairs(given.open) do
  if redis.call('EXISTS', key('reservation', each.id)) == 0 then
    reserve(each.id, {subjects = each.subjects, windows = {}, tokens = each.tokens,
      cost = each.cost, day = each.day, bucket = 0}, now + given.look_ms)
  end
end
if redis.call('HEXISTS', tenant, 'loaded') == 0 then
  for _, each in ipairs(given.lately) do
    local name = key('window', each.subject)
    local bucket = int(math.floor((now - each.age_ms) / BUCKET_MS))
    redis.call('HINCRBY', name, 'r' .. bucket, int(each.requests))
    redis.call('HINCRBY', name, 't' .. bucket, int(each.tokens))
    redis.call('PEXPIRE', name, NUM_BUCKETS * BUCKET_MS)
  end
end
redis.call('HSET', tenant, 'v', int(given.version), 'loaded', 1)
redis.call('PEXPIRE', tenant, int(SPENT_TTL_MS))
return 1
