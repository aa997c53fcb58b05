-- Shared by every script of admission, after the queue's prelude. What is counted, and where:
--
--   places:<subject>      zset  requests in flight by the expiry of their lease
--   entering:<subject>    zset  of a tenant with a queue_depth: those that are admitted and not in
--                               the queue yet (engine/transport/lua/enqueue.lua), likewise
--   window:<subject>      hash  r<bucket>: requests, t<bucket>: tokens; 2 s a bucket, for a minute
--   spent:<subject>       hash  what the ledger says: d<day> tokens, m<month> tokens, c<month> cost;
--                               v: the ledger's version; of a tenant also loaded: all of it is here
--   reserved:<subject>    hash  the same of requests that the ledger does not have yet
--   reservation:<id>      string  what one sequence adds to `reserved` and to the windows
--   reservations          zset  their ids by the time at which a worker looks after them
--   refusal:<request>     string  why a request was refused; expires
--   refusals:<tenant>     list  the latest of them; expires
--
-- A subject is tenant:<id>, key:<id> or adapter:<id>. Days are counted since 1970, a month is
-- 202611. NOTE: `reserved` is the sum of the reservations that exist, at any time: whoever makes or
-- drops one changes both in one script.

local BUCKET_MS, NUM_BUCKETS = 2000, 31  -- the current one and a whole minute before it
local DAY_MS = 86400000
local SPENT_TTL_MS = 40 * DAY_MS

-- Howard Hinnant's civil_from_days and days_from_civil.
local function month_of(day)
  local z = day + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  return (yoe + era * 400 + (month <= 2 and 1 or 0)) * 100 + month
end

local function first_day_after(month)
  local year, number = math.floor(month / 100), month % 100 + 1
  if number == 13 then
    year, number = year + 1, 1
  end
  local y = number <= 2 and year - 1 or year
  local era = math.floor(y / 400)
  local yoe = y - era * 400
  local doy = math.floor((153 * (number > 2 and number - 3 or number + 9) + 2) / 5)
  return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
end

local function add(name, field, amount)
  if amount ~= 0 and redis.call('HINCRBY', name, field, int(amount)) == 0 then
    redis.call('HDEL', name, field)
  end
end

local function add_reserved(reservation, sign)
  local month = int(month_of(reservation.day))
  for _, subject in ipairs(reservation.subjects) do
    local name = key('reserved', subject)
    add(name, 'd' .. int(reservation.day), sign * reservation.tokens)
    add(name, 'm' .. month, sign * reservation.tokens)
    add(name, 'c' .. month, sign * reservation.cost)
  end
end

local function reserve(id, reservation, expires_ms)
  redis.call('SET', key('reservation', id), cmsgpack.pack(reservation))
  redis.call('ZADD', key('reservations'), int(expires_ms), id)
  add_reserved(reservation, 1)
end

-- The sequence used `tokens` in the end: the minute it began in gets the rest back. What the ledger
-- says comes to `spent` from elsewhere. Nothing happens where this was done before.
local function drop_reservation(id, tokens, now)
  local packed = redis.call('GET', key('reservation', id))
  if not packed then
    return false
  end
  local reservation = cmsgpack.unpack(packed)
  redis.call('DEL', key('reservation', id))
  redis.call('ZREM', key('reservations'), id)
  add_reserved(reservation, -1)
  if reservation.bucket > math.floor(now / BUCKET_MS) - NUM_BUCKETS then
    for _, subject in ipairs(reservation.windows) do
      local name = key('window', subject)
      if redis.call('EXISTS', name) == 1 then
        add(name, 't' .. int(reservation.bucket), tokens - reservation.tokens)
      end
    end
  end
  return true
end

local function hold_place(subject, id, now, lease_ms)
  local places = key('places', subject)
  redis.call('ZADD', places, int(now + lease_ms), id)
  redis.call('PEXPIRE', places, int(lease_ms))
end

-- What the ledger says of some subjects. The later version wins, whoever comes last.
local function put_spent(figures)
  for _, each in ipairs(figures) do
    local name = key('spent', each.subject)
    local known = redis.call('HMGET', name, 'v', 'loaded')
    if tonumber(known[1] or -1) <= each.version then
      redis.call('DEL', name)
      redis.call('HSET', name, 'v', int(each.version))
      if known[2] then
        redis.call('HSET', name, 'loaded', known[2])
      end
      for field, amount in pairs(each.amounts) do
        redis.call('HSET', name, field, int(amount))
      end
      redis.call('PEXPIRE', name, int(SPENT_TTL_MS))
    end
  end
end
