-- An engine holds these requests: their places in flight stay theirs for ttl_ms more.
-- ARGV: ttl_ms, request *
-- What a request counts for is in its reservation (app/admission/lua/counters.lua). A place that was
-- given back meanwhile is not taken again: its API process knew better.
local ttl_ms = tonumber(ARGV[1])
local expires = int(now_ms() + ttl_ms)
for i = 2, #ARGV do
  local reservation = redis.call('GET', key('reservation', ARGV[i]))
  if reservation then
    for _, subject in ipairs(cmsgpack.unpack(reservation).subjects) do
      local places = key('places', subject)
      redis.call('ZADD', places, 'XX', 'GT', expires, ARGV[i])
      redis.call('PEXPIRE', places, int(ttl_ms), 'GT')
    end
  end
end
return #ARGV - 1
