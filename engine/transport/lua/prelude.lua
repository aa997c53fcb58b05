-- Shared by every script of the queue. PREFIX is set in front of this text by scripts.py.
-- Scripts run one at a time in the server, so each of them is one step of the queue.

local CONTROL_TTL_MS = 60000  -- a dead engine's control list vanishes by itself
local WIRE_VERSION = '\1'     -- codec.py: the first byte of every message

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

-- A lease is 'epoch:boot:engine'. `boot` tells two lives of an engine with one name apart.
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
