-- Append one entry per API process and what was used, and end the leases of what finished, all at
-- once: what a client can get and what the ledger will say are never apart.
-- ARGV: engine, boot, max_entries, ttl_ms,
--       num_batches, (api, num_outputs, (request, epoch, effect, output) * num_outputs) *,
--       num_records, (request, epoch, record) *, (request, epoch) *
-- effect: 'end' ends the lease, 'hand_over' leaves it for its API process to take back, else ''.
-- The last pairs are leases that end without an output.
-- Returns (request, epoch) * whose output was dropped: the lease is no longer this engine's.
-- Repeating it is harmless: readers drop the indexes they have, a lease ends once, and records
-- hold absolute counts.
local engine, boot, max_entries, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local leases, at, dropped, effects = key('leases'), 5, {}, {}

local function take(n)
  at = at + n
  return unpack(ARGV, at - n, at - 1)
end

-- NOTE: the fence. A lease has one owner, and only its owner is heard.
local function owns(request, epoch)
  return redis.call('HGET', leases, request) == epoch .. ':' .. boot .. ':' .. engine
end

-- Outputs come encoded one by one; this is the head of an array of n of them in msgpack.
local function array_head(n)
  if n < 16 then
    return string.char(0x90 + n)
  end
  return string.char(0xdc, math.floor(n / 256), n % 256)
end

for _ = 1, tonumber(take(1)) do
  local api, num_outputs = take(2)
  local outputs = {}
  for _ = 1, tonumber(num_outputs) do
    local request, epoch, effect, output = take(4)
    if owns(request, epoch) then
      outputs[#outputs + 1] = output
      if effect ~= '' then
        effects[#effects + 1] = {request, epoch, effect}
      end
    else
      dropped[#dropped + 1] = request
      dropped[#dropped + 1] = epoch
    end
  end
  if #outputs > 0 then
    local batch = WIRE_VERSION .. string.char(0x82) .. cmsgpack.pack('engine_id')
      .. cmsgpack.pack(engine) .. cmsgpack.pack('outputs') .. array_head(#outputs)
      .. table.concat(outputs)
    redis.call('XADD', key('out', api), 'MAXLEN', '~', max_entries, '*', 'batch', batch)
    redis.call('PEXPIRE', key('out', api), ttl_ms)
  end
end

-- An engine that lost the request to another one, or to the queue, has no say in its bill. Where
-- nobody has it (it was aborted, or this server lost its data), the engine that ran it has.
local function may_record(request, epoch)
  if redis.call('HEXISTS', leases, request) == 1 then
    return owns(request, epoch)
  end
  return redis.call('EXISTS', key('request', request)) == 0
end

for _ = 1, tonumber(take(1)) do
  local request, epoch, record = take(3)
  if may_record(request, epoch) then
    redis.call('XADD', key('usage'), '*', 'record', record)
  end
end

for i = at, #ARGV, 2 do
  effects[#effects + 1] = {ARGV[i], ARGV[i + 1], 'end'}
end
for _, each in ipairs(effects) do
  local request, epoch, effect = unpack(each)
  if owns(request, epoch) then
    if effect == 'hand_over' then
      redis.call('HSET', leases, request, epoch .. ':' .. NOBODY .. ':' .. engine)
    else
      redis.call('HDEL', leases, request)
      redis.call('DEL', key('request', request))
    end
  end
end
return dropped
