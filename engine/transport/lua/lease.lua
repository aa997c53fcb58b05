-- Give an engine up to n requests: the least-served tenant's oldest that fits, again and again.
-- ARGV: engine, boot, ask, free_pages, page_tokens, n, total_pages, max_age_ms, heartbeat_ttl_ms
-- Returns rows {request, epoch, tenant, api, prompt_tokens, message, queue_ms}. Where nothing is
-- found the engine is idle as of this very step, so no request can arrive unnoticed in between.
local SCAN_REQUESTS, SCAN_TENANTS = 4, 16
local engine, boot, ask = ARGV[1], ARGV[2], ARGV[3]
local free, page_tokens, n = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local total, max_age_ms = tonumber(ARGV[7]), tonumber(ARGV[8])
local idle, tenants, leases, now = key('idle'), key('tenants'), key('leases'), now_ms()

-- Asking is a sign of life: a lease must not look orphaned before the first heartbeat.
if not is_alive(engine, boot) then
  redis.call('HSET', key('engine', engine), 'boot', boot)
  redis.call('PEXPIRE', key('engine', engine), ARGV[9])
  redis.call('SADD', key('engines'), engine)
end
redis.call('ZREM', idle, engine)

local function row(request, epoch)
  local body = redis.call('HMGET', key('request', request),
    'tenant', 'api', 'prompt_tokens', 'message', 'arrived_ms')
  local queue_ms = math.max(0, now - tonumber(body[5] or now))
  return {request, epoch, body[1], body[2], tonumber(body[3]), body[4], queue_ms}
end

-- A repeated ask (its reply was lost on the way) gets the same leases once more.
local granted = redis.call('HMGET', key('grant', engine), 'ask', 'requests')
if granted[1] == ask then
  local rows = {}
  for _, request in ipairs(cmsgpack.unpack(granted[2])) do
    local lease = redis.call('HGET', leases, request)
    if lease then
      local epoch, lease_boot, lease_engine = parse_lease(lease)
      if lease_boot == boot and lease_engine == engine then
        rows[#rows + 1] = row(request, epoch)
      end
    end
  end
  return rows
end

-- The oldest request of a tenant that fits, and its pages; or whether one that waits too long
-- for room bars the way: whatever came after it could keep its pages from ever being free.
-- What fits in no engine is given out, for the engine to refuse: it always answers.
local function choose(tenant)
  for _, request in ipairs(redis.call('ZRANGE', key('queue', tenant), 0, SCAN_REQUESTS - 1)) do
    local body = redis.call('HMGET', key('request', request), 'prompt_tokens', 'arrived_ms')
    if not body[1] then
      remove_from_queue(tenant, request)  -- its body is lost; it must not stop the others
    else
      local pages = math.ceil((tonumber(body[1]) + 1) / page_tokens)
      if pages <= free or pages > total then
        return request, pages, false
      end
      if now - tonumber(body[2]) >= max_age_ms then
        return nil, 0, true
      end
    end
  end
  return nil, 0, false
end

local rows, requests, num_passed_over = {}, {}, 0
while #rows < n and num_passed_over < SCAN_TENANTS do
  local least = redis.call('ZRANGE', tenants, num_passed_over, num_passed_over, 'WITHSCORES')
  local tenant = least[1]
  if not tenant then
    break
  end
  local request, pages, is_barred = choose(tenant)
  if is_barred then
    break
  elseif request then
    local epoch = redis.call('HINCRBY', key('request', request), 'epoch', 1)
    redis.call('HSET', leases, request, int(epoch) .. ':' .. boot .. ':' .. engine)
    remove_from_queue(tenant, request)
    local level = tonumber(redis.call('GET', key('level')) or 0)
    redis.call('SET', key('level'), int(math.max(level, tonumber(least[2]))))
    rows[#rows + 1] = row(request, epoch)
    requests[#requests + 1] = request
    if epoch == 1 then  -- running it again after a failure is free to the tenant
      charge(tenant, rows[#rows][5])
    end
    free = free - pages
  elseif redis.call('ZSCORE', tenants, tenant) then
    num_passed_over = num_passed_over + 1
  end
end

if #rows > 0 then
  redis.call('HSET', key('grant', engine), 'ask', ask, 'requests', cmsgpack.pack(requests))
  redis.call('PEXPIRE', key('grant', engine), CONTROL_TTL_MS)
else
  redis.call('ZADD', idle, int(free * page_tokens), engine)
end
return rows
