-- Decide about one request, a sequence per choice: look at every limit, then reserve all or nothing.
-- Time is this server's, whatever the callers' clocks.
-- ARGV: Ask (app/admission/messages.py), refusal_ttl_ms, max_refusals
-- Returns a Verdict. `admitted` takes a place, counts in the minute's windows and reserves
-- prompt + max_tokens until the ledger has it; a repeated call does so once. `refused` changes
-- nothing, and is remembered for a while. `unloaded`: this server does not know what the tenant has
-- spent, or had in the last minute; whoever asks shall load it (load.lua) and ask again.
local ask = cmsgpack.unpack(ARGV[1])
local now = now_ms()
local day, bucket = math.floor(now / DAY_MS), math.floor(now / BUCKET_MS)
local month = month_of(day)
local tenant = 'tenant:' .. ask.tenant_id
local SPENT_FIELD = {
  tokens_per_day = 'd' .. int(day),
  tokens_per_month = 'm' .. int(month),
  cost_micros_per_month = 'c' .. int(month),
}

local function verdict(status, checks)
  return cmsgpack.pack({status = status, now_ms = now, checks = checks})
end

if redis.call('EXISTS', key('reservation', ask.sequences[1].id)) == 1 then
  return verdict('admitted', {})
end
local OF_A_MINUTE = {requests_per_minute = true, tokens_per_minute = true}
for _, limit in ipairs(ask.limits) do
  if (SPENT_FIELD[limit.kind] or OF_A_MINUTE[limit.kind])
    and redis.call('HEXISTS', key('spent', tenant), 'loaded') == 0 then
    return verdict('unloaded', {})
  end
end

local tokens, cost = 0, 0
for _, sequence in ipairs(ask.sequences) do
  tokens, cost = tokens + sequence.tokens, cost + sequence.cost
end

-- The minute's buckets of a subject, and what they add up to. Older ones are forgotten.
local windows = {}
local function window_of(subject)
  if not windows[subject] then
    local name, found = key('window', subject), {r = {}, t = {}}
    local fields = redis.call('HGETALL', name)
    for i = 1, #fields, 2 do
      local what, at = string.sub(fields[i], 1, 1), tonumber(string.sub(fields[i], 2))
      if at > bucket - NUM_BUCKETS then
        found[what][#found[what] + 1] = {at = at, amount = tonumber(fields[i + 1])}
      else
        redis.call('HDEL', name, fields[i])
      end
    end
    windows[subject] = found
  end
  return windows[subject]
end

-- used, ms until `amount` more fits (-1: never), ms until nothing is used.
local function look_at_window(limit, what, amount)
  local buckets, used = window_of(limit.subject)[what], 0
  table.sort(buckets, function(a, b) return a.at < b.at end)
  for _, each in ipairs(buckets) do
    used = used + each.amount
  end
  local free_ms, reset_ms, left = 0, 0, used
  if amount > limit.limit then
    free_ms = -1
  end
  for _, each in ipairs(buckets) do
    reset_ms = (each.at + NUM_BUCKETS) * BUCKET_MS - now
    if free_ms >= 0 and left + amount > limit.limit then
      free_ms = reset_ms
    end
    left = left - each.amount
  end
  return used, free_ms, reset_ms
end

local IN_FLIGHT_MS = 1000  -- frees whenever any request of the tenant ends

local function look_at_spent(limit, amount)
  local field = SPENT_FIELD[limit.kind]
  local settled = tonumber(redis.call('HGET', key('spent', limit.subject), field) or 0)
  local reserved = tonumber(redis.call('HGET', key('reserved', limit.subject), field) or 0)
  local last_day = limit.kind == 'tokens_per_day' and day + 1 or first_day_after(month)
  local reset_ms, free_ms = last_day * DAY_MS - now, 0
  if amount > limit.limit then
    free_ms = -1
  elseif settled + reserved + amount > limit.limit then
    free_ms = settled + amount > limit.limit and reset_ms or IN_FLIGHT_MS
  end
  return settled + reserved, free_ms, reset_ms
end

local function look_at_places(limit, amount)
  local places = key('places', limit.subject)
  redis.call('ZREMRANGEBYSCORE', places, '-inf', int(now))
  return redis.call('ZCARD', places), amount > limit.limit and -1 or IN_FLIGHT_MS, 0
end

-- A full queue turns over in about the time that its oldest request has waited; nobody is told of
-- more than LONGEST_WAIT_MS, since a queue may empty at any time.
local LONGEST_WAIT_MS = 60000

local function is_any_engine_alive()
  for _, engine in ipairs(redis.call('SMEMBERS', key('engines'))) do
    if redis.call('EXISTS', key('engine', engine)) == 1 then
      return true
    end
  end
  return false
end

-- An engine that has room looks into the queue in each of its steps: what waits for longer than one
-- of them waits because none has.
local FULL_AFTER_MS = 100

-- For how long the tenant's oldest request has waited; 0 where none does.
local function waited_ms()
  local oldest = redis.call('ZRANGE', key('queue', ask.tenant_id), 0, 0)[1]
  local arrived_ms = oldest and redis.call('HGET', key('request', oldest), 'arrived_ms')
  return math.max(0, now - tonumber(arrived_ms or now))
end

-- NOTE: where engines are full, whoever is admitted waits from then on, though a commit lies between
-- here and the queue: requests that come together would find it as short one by one. Where they may
-- have room nobody is refused for those who come with it, and a request counts as one, so that 0
-- still lets nothing pass.
local waited = waited_ms()
local will_wait = waited > FULL_AFTER_MS or not is_any_engine_alive()

local function look_at_queue(limit)
  local entering = key('entering', tenant)
  redis.call('ZREMRANGEBYSCORE', entering, '-inf', int(now))
  local free_ms = limit.limit == 0 and -1 or math.min(waited, LONGEST_WAIT_MS)
  local num_entering = will_wait and redis.call('ZCARD', entering) or 0
  return redis.call('ZCARD', key('queue', ask.tenant_id)) + num_entering, free_ms, 0
end

local AMOUNTS = {
  requests_per_minute = 1,
  tokens_per_minute = tokens,
  tokens_per_day = tokens,
  tokens_per_month = tokens,
  cost_micros_per_month = cost,
  concurrency = #ask.sequences,
  queue_depth = will_wait and #ask.sequences or 1,
}

local function look_at(limit)
  local amount = AMOUNTS[limit.kind]
  local used, free_ms, reset_ms
  if limit.kind == 'requests_per_minute' then
    used, free_ms, reset_ms = look_at_window(limit, 'r', amount)
  elseif limit.kind == 'tokens_per_minute' then
    used, free_ms, reset_ms = look_at_window(limit, 't', amount)
  elseif limit.kind == 'concurrency' then
    used, free_ms, reset_ms = look_at_places(limit, amount)
  elseif limit.kind == 'queue_depth' then
    used, free_ms, reset_ms = look_at_queue(limit)
  else
    used, free_ms, reset_ms = look_at_spent(limit, amount)
  end
  return {used = used, amount = amount, is_over = used + amount > limit.limit,
    free_ms = free_ms, reset_ms = reset_ms}
end

local checks, is_refused, has_queue = {}, false, false
for i, limit in ipairs(ask.limits) do
  checks[i] = look_at(limit)
  has_queue = has_queue or limit.kind == 'queue_depth'
  is_refused = is_refused or (checks[i].is_over and limit.mode == 'hard')
end

if is_refused then
  local name, list = key('refusal', ask.request_id), key('refusals', ask.tenant_id)
  redis.call('SET', name,
    cmsgpack.pack({ask = ask, verdict = {status = 'refused', now_ms = now, checks = checks}}),
    'PX', ARGV[2])
  if redis.call('RPUSH', list, ask.request_id) > tonumber(ARGV[3]) then
    redis.call('DEL', key('refusal', redis.call('LPOP', list)))
  end
  redis.call('PEXPIRE', list, ARGV[2])
  return verdict('refused', checks)
end

for i, limit in ipairs(ask.limits) do
  if limit.kind == 'requests_per_minute' or limit.kind == 'tokens_per_minute' then
    checks[i].reset_ms = (bucket + NUM_BUCKETS) * BUCKET_MS - now
  end
end
for _, subject in ipairs(ask.windows) do
  local name = key('window', subject)
  redis.call('HINCRBY', name, 'r' .. int(bucket), 1)
  redis.call('HINCRBY', name, 't' .. int(bucket), int(tokens))
  redis.call('PEXPIRE', name, NUM_BUCKETS * BUCKET_MS)
end
for _, sequence in ipairs(ask.sequences) do
  reserve(sequence.id, {subjects = ask.subjects, windows = ask.windows, tokens = sequence.tokens,
    cost = sequence.cost, day = day, bucket = bucket}, now + ask.lease_ms)
  for _, subject in ipairs(ask.places) do
    hold_place(subject, sequence.id, now, ask.lease_ms)
  end
  if has_queue then
    redis.call('ZADD', key('entering', tenant), int(now + ask.lease_ms), sequence.id)
    redis.call('PEXPIRE', key('entering', tenant), int(ask.lease_ms))
  end
end
return verdict('admitted', checks)
