-- Where are these requests, and which engines live?
-- ARGV: generation to set where there is none, request *
-- Returns {generation and server, live engines, dead engines, one letter per request, requests in the queue}.
-- q queued, x was queued until its deadline passed, l leased to a live engine, d leased to a dead
-- one, h handed over by one that drains, u unknown (finished, or this server lost its data).
redis.call('SET', key('generation'), ARGV[1], 'NX')
local live, dead, states = {}, {}, {}
for _, engine in ipairs(redis.call('SMEMBERS', key('engines'))) do
  local is_here = redis.call('EXISTS', key('engine', engine)) == 1
  table.insert(is_here and live or dead, engine)
end
for i = 2, #ARGV do
  local lease = redis.call('HGET', key('leases'), ARGV[i])
  if lease then
    local _, boot, engine = parse_lease(lease)
    states[#states + 1] = boot == NOBODY and 'h' or is_alive(engine, boot) and 'l' or 'd'
  else
    local body = redis.call('HMGET', key('request', ARGV[i]), 'tenant', 'is_expired')
    states[#states + 1] = not body[1] and 'u' or body[2] and 'x' or 'q'
  end
end
-- A replica that took over may lack what was written last: what another server has is not the same.
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
return {redis.call('GET', key('generation')) .. '@' .. server, live, dead, table.concat(states),
  tonumber(redis.call('GET', key('num_queued')) or 0)}
