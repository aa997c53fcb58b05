-- Shared by every script of the queue. PREFIX is set in front of this text by scripts.py.
-- Scripts run one at a time in the server, so each of them is one step of the queue.

local CONTROL_TTL_MS = 60000  -- a dead engine's control list vanishes by itself
local WIRE_VERSION = '\2'     -- codec.py: the first byte of every message

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

local function push_control(engine, message)
  local list = key('control', engine)
  redis.call('RPUSH', list, WIRE_VERSION .. cmsgpack.pack(message))
  redis.call('PEXPIRE', list, CONTROL_TTL_MS)
end

-- NOTE: a tenant is in `tenants` exactly while it has a queue.
local function remove_from_queue(tenant, request)
  local queue = key('queue', tenant)
  redis.call('ZREM', queue, request)
  if redis.call('EXISTS', queue) == 0 then
    redis.call('ZREM', key('tenants'), tenant)
  end
end

local function charge(tenant, cost)
  redis.call('HINCRBY', key('vtc'), tenant, int(cost))
  if redis.call('ZSCORE', key('tenants'), tenant) then
    redis.call('ZINCRBY', key('tenants'), int(cost), tenant)
  end
end

-- Put the request of enqueue.lua's arguments into its tenant's queue, and wake an idle engine.
-- `arrival` is its place there, where it had one before.
local function push_request(arrival)
  local request, tenant = ARGV[1], ARGV[2]
  arrival = arrival or redis.call('INCR', key('arrivals'))
  redis.call('HSET', key('request', request), 'tenant', tenant, 'api', ARGV[3],
    'message', ARGV[4], 'prompt_tokens', ARGV[5], 'max_tokens', ARGV[6], 'adapter', ARGV[7],
    'epoch', ARGV[8], 'arrived_ms', int(now_ms()), 'arrival', arrival)
  redis.call('ZADD', key('queue', tenant), arrival, request)

  -- Lift on re-entry: whoever was away gets no credit for it. With nobody waiting, the counter of
  -- the last tenant served stands for those who were.
  if not redis.call('ZSCORE', key('tenants'), tenant) then
    local least = redis.call('ZRANGE', key('tenants'), 0, 0, 'WITHSCORES')[2]
    local level = tonumber(least or redis.call('GET', key('level')) or 0)
    local own = tonumber(redis.call('HGET', key('vtc'), tenant) or 0)
    local counter = int(math.max(own, level))
    redis.call('HSET', key('vtc'), tenant, counter)
    redis.call('ZADD', key('tenants'), counter, tenant)
  end

  -- The roomiest idle engine that lives. One without room for it only asks once in vain; one whose
  -- heartbeat is late is woken too, but not relied on.
  local idle = key('idle')
  for _, engine in ipairs(redis.call('ZREVRANGE', idle, 0, -1)) do
    redis.call('ZREM', idle, engine)
    push_control(engine, {type = 'wake'})
    if redis.call('EXISTS', key('engine', engine)) == 1 then
      break
    end
  end
end
