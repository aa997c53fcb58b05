-- Accept one request into its tenant's queue, and wake an idle engine.
-- ARGV: request, tenant, api, message, prompt_tokens, max_tokens, adapter, epoch, weight,
--       service tier, ms until its deadline ('' for none), reserved share,
--       the Wake for an engine, sealed
-- Returns 'queued', or 'known' where the request is here already (a repeated call does nothing).
if redis.call('EXISTS', key('request', ARGV[1])) == 1 then
  return 'known'
end
push_request(nil)
redis.call('ZREM', key('entering', 'tenant', ARGV[2]), ARGV[1])  -- app/admission/lua/counters.lua
return 'queued'
