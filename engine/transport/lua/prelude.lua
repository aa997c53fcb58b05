-- Shared by every script of the queue. PREFIX is set in front of this text by scripts.py.
-- Scripts run one at a time in the server, so each of them is one step of the queue.

local CONTROL_TTL_MS = 60000  -- a dead engine's control list vanishes by itself
local WIRE_VERSION = '\2'     -- codec.py: the first byte of every message; publish.lua writes it

local function key(...)
  return PREFIX .. table.concat({...}, ':')
end

local function int(number)
  return string.format('%.0f', number)  -- Lua's own form turns 1e14 into '1e+14'
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A lease is 'epoch:boot:engine'. `boot` tells two lives of an engine with one name apart; NOBODY's
-- are handed over: no engine has them, and their API process has not taken them back yet.
local NOBODY = ''

local function parse_lease(lease)
  local epoch, boot, engine = string.match(lease, '^(%d+):([^:]*):(.*)$')
  return tonumber(epoch), boot, engine
end

local function is_alive(engine, boot)
  return redis.call('HGET', key('engine', engine), 'boot') == boot
end

-- message: comes sealed from whoever called the script; '' where there is none to send.
local function push_control(engine, message)
  if message == '' then
    return
  end
  local list = key('control', engine)
  redis.call('RPUSH', list, message)
  redis.call('PEXPIRE', list, CONTROL_TTL_MS)
end

-- A tenant's queue is in order of tier, then of arrival. Its *lanes* say what is in it, and hold its
-- virtual token counter: STANDARD while it has a request of tier priority or default, PRIORITY and
-- FLEX while it has one of these. NOTE: a tenant is in a lane exactly while it has such a request.
local RANK = {priority = 0, default = 1, flex = 2}
local RANK_STEP = 2 ^ 48
-- RESERVED has those of STANDARD for whom a share of all service is reserved, by their tags.
local STANDARD, PRIORITY, FLEX = key('tenants'), key('tenants_priority'), key('tenants_flex')
local RESERVED = key('tenants_reserved')
local LANES = {  -- with the scores of its requests; the first three are by the counter
  {STANDARD, '-inf', '(' .. int(RANK.flex * RANK_STEP)},
  {PRIORITY, '-inf', '(' .. int(RANK.default * RANK_STEP)},
  {FLEX, int(RANK.flex * RANK_STEP), '+inf'},
  {RESERVED, '-inf', '(' .. int(RANK.flex * RANK_STEP)},
}

local function leave_lanes(tenant)
  for _, lane in ipairs(LANES) do
    if redis.call('ZCOUNT', key('queue', tenant), lane[2], lane[3]) == 0 then
      redis.call('ZREM', lane[1], tenant)
    end
  end
end

local function remove_from_queue(tenant, request)
  if redis.call('ZREM', key('queue', tenant), request) == 1 then
    if redis.call('DECR', key('num_queued')) <= 0 then
      redis.call('DEL', key('num_queued'))
    end
  end
  redis.call('ZREM', key('flex'), request)
  leave_lanes(tenant)
end

-- A counter as text, exact for whole numbers and as good as exact for the fractions of weights.
local function counter_text(counter)
  return string.format('%.17g', counter)
end

local function set_counter(tenant, counter)
  redis.call('HSET', key('vtc'), tenant, counter)
  for i = 1, 3 do
    redis.call('ZADD', LANES[i][1], 'XX', counter, tenant)
  end
end

local SHARE_MEMORY = 4096  -- of its own tokens, that a tenant may be ahead of its share

-- What all tenants got is a clock. The tag of one that has a reserved share is the time by it at
-- which more is due: while the tag lags, the tenant has had less than its share, and what it gets is
-- paid by that (engine/reserved_share.py, which does the same inside an engine).
local function total_served()
  return tonumber(redis.call('GET', key('served')) or 0)
end

local function set_tag(tenant, tag)
  redis.call('HSET', key('tags'), tenant, counter_text(tag))
  redis.call('ZADD', RESERVED, 'XX', counter_text(tag), tenant)
end

-- Returns whether the tenant's share pays for it.
local function charge_share(tenant, cost)
  local served = total_served()
  redis.call('SET', key('served'), counter_text(served + cost))
  local share = tonumber(redis.call('HGET', key('shares'), tenant) or 0)
  if share == 0 then
    return false
  end
  local tag = tonumber(redis.call('HGET', key('tags'), tenant) or served)
  set_tag(tenant, math.min(tag, served + SHARE_MEMORY / share) + cost / share)
  return tag < served
end

-- Nothing is due to whoever was away, for that time.
local function enter_reserved(tenant)
  if redis.call('HEXISTS', key('shares'), tenant) == 1
    and not redis.call('ZSCORE', RESERVED, tenant) then
    local served = total_served()
    local tag = math.max(served, tonumber(redis.call('HGET', key('tags'), tenant) or 0))
    redis.call('ZADD', RESERVED, counter_text(tag), tenant)
    set_tag(tenant, tag)
  end
end

local function put_share(tenant, share)
  if share > 0 then
    redis.call('HSET', key('shares'), tenant, counter_text(share))
  elseif redis.call('HDEL', key('shares'), tenant) == 1 then
    redis.call('HDEL', key('tags'), tenant)
    redis.call('ZREM', RESERVED, tenant)
  end
end

-- cost: in prompt tokens. With twice the weight it weighs half as much.
local function charge(tenant, cost)
  local own = tonumber(redis.call('HGET', key('vtc'), tenant) or 0)
  if charge_share(tenant, cost) then  -- no credit for the turns that it did not need
    local level = tonumber(redis.call('GET', key('level')) or 0)
    set_counter(tenant, counter_text(math.max(own, level)))
    return
  end
  local weight = tonumber(redis.call('HGET', key('weights'), tenant) or 1)
  set_counter(tenant, counter_text(own + cost / weight))
end

-- Lift on re-entry: whoever was away gets no credit for it. With nobody waiting, the counter of the
-- last tenant served stands for those who were. Who only had flex requests was away from the others.
local function enter(lane, tenant)
  if redis.call('ZSCORE', lane, tenant) then
    return
  end
  local counter = tonumber(redis.call('HGET', key('vtc'), tenant) or 0)
  if lane ~= PRIORITY and not redis.call('ZSCORE', STANDARD, tenant) then
    local least = redis.call('ZRANGE', lane, 0, 0, 'WITHSCORES')[2]
    counter = math.max(counter, tonumber(least or redis.call('GET', key('level')) or 0))
  end
  redis.call('ZADD', lane, counter_text(counter), tenant)
  set_counter(tenant, counter_text(counter))
end

-- Give a request its place in its tenant's queue, or another one.
local function put_in_queue(tenant, request, tier, arrival)
  local score = int(RANK[tier] * RANK_STEP + tonumber(arrival))
  local is_new = redis.call('ZADD', key('queue', tenant), score, request) == 1
  enter(tier == 'flex' and FLEX or STANDARD, tenant)
  if tier ~= 'flex' then
    enter_reserved(tenant)
  end
  if tier == 'priority' then
    enter(PRIORITY, tenant)
  end
  if is_new then
    redis.call('INCR', key('num_queued'))
  else
    leave_lanes(tenant)
  end
end

-- Of the idle engines that live, one that holds the request's adapter and has room for its prompt,
-- else the roomiest. One without room for it only asks once in vain; one whose heartbeat is late is
-- woken too, but not relied on.
local function wake_engine(adapter, prompt_tokens, wake)
  local idle = key('idle')
  local engines, is_first = redis.call('ZREVRANGE', idle, 0, -1, 'WITHSCORES'), {}
  local order = {}
  for i = 1, #engines, 2 do
    local engine = engines[i]
    if adapter ~= '' and tonumber(engines[i + 1]) > prompt_tokens
      and redis.call('SISMEMBER', key('resident', engine), adapter) == 1 then
      order[#order + 1] = engine
      is_first[engine] = true
    end
  end
  for i = 1, #engines, 2 do
    if not is_first[engines[i]] then
      order[#order + 1] = engines[i]
    end
  end
  for _, engine in ipairs(order) do
    redis.call('ZREM', idle, engine)
    push_control(engine, wake)
    if redis.call('EXISTS', key('engine', engine)) == 1 then
      break
    end
  end
end

-- Put the request of enqueue.lua's arguments into its tenant's queue, and wake an idle engine.
-- `arrival` is its place there, where it had one before.
local function push_request(arrival)
  local request, tenant, tier, now = ARGV[1], ARGV[2], ARGV[10], now_ms()
  arrival = arrival or redis.call('INCR', key('arrivals'))
  redis.call('HSET', key('request', request), 'tenant', tenant, 'api', ARGV[3],
    'message', ARGV[4], 'prompt_tokens', ARGV[5], 'max_tokens', ARGV[6], 'adapter', ARGV[7],
    'epoch', ARGV[8], 'arrived_ms', int(now), 'arrival', arrival,
    'deadline_ms', ARGV[11] == '' and '' or int(now + tonumber(ARGV[11])))
  if tonumber(ARGV[9]) == 1 then
    redis.call('HDEL', key('weights'), tenant)
  else
    redis.call('HSET', key('weights'), tenant, ARGV[9])
  end
  put_share(tenant, tonumber(ARGV[12]))
  put_in_queue(tenant, request, tier, arrival)
  if tier == 'flex' then
    redis.call('ZADD', key('flex'), int(now), request)
  end
  wake_engine(ARGV[7], tonumber(ARGV[5]), ARGV[13])
end

-- How many requests a second are leased while there are more in the queue: what all engines can
-- do. A span in which the queue was empty once shows only that they can do so much at least.
local SPAN_MS, MEMORY_MS, SERVICE_TTL_MS = 500, 2000, 60000

local function measure_service(num_leased, now)
  local service = key('service')
  local found = redis.call('HMGET', service, 'since_ms', 'num_leased', 'was_empty', 'rate')
  local since_ms, rate = tonumber(found[1] or now), tonumber(found[4])
  local num = tonumber(found[2] or 0) + num_leased
  local is_empty = redis.call('EXISTS', key('num_queued')) == 0
  local was_empty, span_ms = is_empty or found[3] == '1', now - since_ms
  if span_ms >= SPAN_MS then
    local seen = num * 1000 / span_ms
    if span_ms > 10 * SPAN_MS then  -- nobody asked for a while
      seen = rate
    elseif not rate then
      rate = seen
    elseif seen > rate or not was_empty then
      rate = rate + (seen - rate) * math.min(1, span_ms / MEMORY_MS)
    end
    since_ms, num, was_empty = now, 0, is_empty
  end
  redis.call('HSET', service, 'since_ms', int(since_ms), 'num_leased', num,
    'was_empty', was_empty and 1 or 0)
  if rate then
    redis.call('HSET', service, 'rate', counter_text(rate))
  end
  redis.call('PEXPIRE', service, SERVICE_TTL_MS)
end
