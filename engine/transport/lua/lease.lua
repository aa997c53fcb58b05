-- Give an engine up to n requests: the least-served tenant's first that fits, again and again.
-- ARGV: engine, boot, ask, free_pages, page_tokens, n, total_pages, max_age_ms, heartbeat_ttl_ms,
--       affinity_slack, affinity_wait_ms, priority_slack, flex_wait_ms
-- Returns rows {request, epoch, tenant, api, prompt_tokens, message, queue_ms}. Where nothing is
-- found the engine is idle as of this very step, so no request can arrive unnoticed in between.
local SCAN_REQUESTS, SCAN_TENANTS, SCAN_AGED = 4, 16, 64
local EXPIRED_TTL_MS = 60000
local engine, boot, ask = ARGV[1], ARGV[2], ARGV[3]
local free, page_tokens, n = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local total, max_age_ms = tonumber(ARGV[7]), tonumber(ARGV[8])
local affinity_slack, affinity_wait_ms = tonumber(ARGV[10]), tonumber(ARGV[11])
local priority_slack, flex_wait_ms = tonumber(ARGV[12]), tonumber(ARGV[13])
local idle, leases, now = key('idle'), key('leases'), now_ms()

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

-- A flex request that has waited for long yields no more: from now on it is as good as any.
for _, request in ipairs(redis.call('ZRANGEBYSCORE', key('flex'), '-inf', int(now - flex_wait_ms),
  'LIMIT', 0, SCAN_AGED)) do
  local body = redis.call('HMGET', key('request', request), 'tenant', 'arrival')
  redis.call('ZREM', key('flex'), request)
  if body[1] then
    put_in_queue(body[1], request, 'default', body[2])
  end
end

local bodies = {}  -- each is read once

local function read_body(request)
  if bodies[request] == nil then
    local found = redis.call('HMGET', key('request', request),
      'prompt_tokens', 'arrived_ms', 'adapter', 'deadline_ms', 'passed_ms')
    bodies[request] = found[1] and {
      pages = math.ceil((tonumber(found[1]) + 1) / page_tokens),
      age_ms = now - tonumber(found[2]),
      adapter = found[3],
      is_expired = now >= (tonumber(found[4]) or math.huge),
      passed_ms = tonumber(found[5]),
    }
  end
  return bodies[request]
end

-- Out of the queue; its API process says so to its client (see inspect.lua).
local function expire(tenant, request)
  remove_from_queue(tenant, request)
  redis.call('HSET', key('request', request), 'is_expired', 1)
  redis.call('PEXPIRE', key('request', request), EXPIRED_TTL_MS)
end

local function live_head(tenant, lane)
  while true do
    local requests, is_clean = redis.call('ZRANGEBYSCORE', key('queue', tenant),
      lane[2], lane[3], 'WITHSCORES', 'LIMIT', 0, SCAN_REQUESTS), true
    for i = 1, #requests, 2 do
      local body = read_body(requests[i])
      if not body then
        remove_from_queue(tenant, requests[i])  -- its body is lost; it must not stop the others
        is_clean = false
      elseif body.is_expired then
        expire(tenant, requests[i])
        is_clean = false
      end
    end
    if is_clean then
      return requests
    end
  end
end

-- The first request of a tenant's lane that fits, with its rank and pages; or whether one that
-- waits too long for room bars the way: whatever came after it could keep its pages from ever being
-- free. What fits in no engine is given out, for the engine to refuse: it always answers.
local function choose(tenant, counter, lane)
  local requests = live_head(tenant, lane)
  for i = 1, #requests, 2 do
    local request, body = requests[i], read_body(requests[i])
    if body.pages <= free or body.pages > total then
      local rank = math.floor(tonumber(requests[i + 1]) / RANK_STEP)
      return {tenant = tenant, counter = counter, request = request, body = body, rank = rank}
    end
    if body.age_ms >= max_age_ms then
      return nil, true
    end
  end
  return nil, false
end

local num_passed_over = {[STANDARD] = 0, [FLEX] = 0}  -- they stay the first: others gain

-- The choice of the first tenant in a lane that has one; or whether the way is barred.
local function first_in(lane)
  local name = lane[1]
  while num_passed_over[name] < SCAN_TENANTS do
    local at = num_passed_over[name]
    local least = redis.call('ZRANGE', name, at, at, 'WITHSCORES')
    if not least[1] then
      return nil, false
    end
    local choice, is_barred = choose(least[1], tonumber(least[2]), lane)
    if choice or is_barred then
      return choice, is_barred
    elseif redis.call('ZSCORE', name, least[1]) then
      num_passed_over[name] = at + 1
    end
  end
  return nil, false
end

-- The tenants of a lane in order, up to `slack` tokens ahead of the least-served one that waits.
local function within(name, slack)
  local least = tonumber(redis.call('ZRANGE', STANDARD, 0, 0, 'WITHSCORES')[2])
  return redis.call('ZRANGEBYSCORE', name, '-inf', counter_text(least + slack),
    'WITHSCORES', 'LIMIT', 0, SCAN_TENANTS)
end

local function priority_before(head)
  if head.rank == RANK.priority then
    return nil
  end
  local tenants = within(PRIORITY, priority_slack)
  for i = 1, #tenants, 2 do
    local choice = choose(tenants[i], tonumber(tenants[i + 1]), LANES[2])
    if choice then
      return choice
    end
  end
  return nil
end

local is_here = {[''] = true}  -- by adapter; the base is everywhere

local function is_resident(adapter)
  if is_here[adapter] == nil then
    is_here[adapter] = redis.call('SISMEMBER', key('resident', engine), adapter) == 1
  end
  return is_here[adapter]
end

-- A choice whose adapter this engine holds, before one whose adapter it would have to load. Nobody
-- is passed like that for longer than affinity_wait_ms in all, nor at all once max_age_ms old.
local function resident_before(head)
  local tenants, passed = within(STANDARD, affinity_slack), {}
  for i = 1, #tenants, 2 do
    local choice, is_barred = choose(tenants[i], tonumber(tenants[i + 1]), LANES[1])
    if is_barred then
      return nil
    elseif choice and choice.rank <= head.rank and is_resident(choice.body.adapter) then
      for _, each in ipairs(passed) do
        if not each.body.passed_ms then
          each.body.passed_ms = now
          redis.call('HSET', key('request', each.request), 'passed_ms', int(now))
        end
      end
      return choice
    elseif choice then
      local body = choice.body
      if body.age_ms >= max_age_ms or now - (body.passed_ms or now) >= affinity_wait_ms then
        return nil
      end
      passed[#passed + 1] = choice
    end
  end
  return nil
end

-- Of those to whom a part of their reserved share is due, the first: before all others. What it asks
-- for may bar the way as well, and bars it for them only while something is due.
local function first_due()
  local tenants = redis.call('ZRANGEBYSCORE', RESERVED, '-inf',
    '(' .. counter_text(total_served()), 'LIMIT', 0, SCAN_TENANTS)
  for _, tenant in ipairs(tenants) do
    local choice, is_barred = choose(tenant, nil, LANES[1])
    if choice or is_barred then
      return choice, is_barred
    end
  end
  return nil, false
end

local function next_choice()
  local due, is_barred_by_due = first_due()
  if due or is_barred_by_due then
    return due, nil
  end
  local head, is_barred = first_in(LANES[1])
  if is_barred then
    return nil, nil
  elseif not head then
    local flex = first_in(LANES[3])
    return flex, flex
  end
  local choice = priority_before(head)
  if not choice and not is_resident(head.body.adapter) then
    choice = resident_before(head)
  end
  return choice or head, head
end

local rows, requests = {}, {}
while #rows < n do
  local choice, head = next_choice()
  if not choice then
    break
  end
  local tenant, request = choice.tenant, choice.request
  local epoch = redis.call('HINCRBY', key('request', request), 'epoch', 1)
  redis.call('HSET', leases, request, int(epoch) .. ':' .. boot .. ':' .. engine)
  remove_from_queue(tenant, request)
  if head then  -- newcomers start where it was somebody's turn, not where a share was due
    local level = tonumber(redis.call('GET', key('level')) or 0)
    redis.call('SET', key('level'), counter_text(math.max(level, head.counter)))
  end
  rows[#rows + 1] = row(request, epoch)
  requests[#requests + 1] = request
  if epoch == 1 then  -- running it again after a failure is free to the tenant
    charge(tenant, rows[#rows][5])
  end
  free = free - choice.body.pages
end

measure_service(#rows, now)
if #rows > 0 then
  redis.call('HSET', key('grant', engine), 'ask', ask, 'requests', cmsgpack.pack(requests))
  redis.call('PEXPIRE', key('grant', engine), CONTROL_TTL_MS)
else
  redis.call('ZADD', idle, int(free * page_tokens), engine)
end
return rows
