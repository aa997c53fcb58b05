-- What waits and what runs, for whoever decides how many engines there should be.
-- ARGV: how many requests to look at
-- Returns {requests in the queue, requests leased, requests looked at, their prompt and answer
-- tokens, how many ms the first of them has waited}. Looks at tenants in turn, so that its time is bounded.
local limit = tonumber(ARGV[1])
local seen, tokens, oldest = 0, 0, 0
for _, lane in ipairs({STANDARD, FLEX}) do
  for _, tenant in ipairs(redis.call('ZRANGE', lane, 0, limit)) do
    for _, request in ipairs(redis.call('ZRANGE', key('queue', tenant), 0, 9)) do
      if seen >= limit then
        break
      end
      local found = redis.call('HMGET', key('request', request),
        'prompt_tokens', 'max_tokens', 'arrived_ms')
      if found[3] then
        local arrived = tonumber(found[3])
        seen = seen + 1
        tokens = tokens + tonumber(found[1] or 0) + tonumber(found[2] or 0)
        oldest = oldest == 0 and arrived or math.min(oldest, arrived)
      end
    end
    if seen >= limit then
      break
    end
  end
end
local wait_ms = oldest > 0 and now_ms() - oldest or 0
return {tonumber(redis.call('GET', key('num_queued')) or 0), redis.call('HLEN', key('leases')),
  seen, int(tokens), int(wait_ms)}
