-- Keep the places and the reservations of sequences that are still in flight.
-- ARGV: {lease_ms, held = [{id, places, tokens, cost, subjects, day}]}
-- Returns how many were kept. Places that its engine keeps (engine/transport/lua/hold.lua) are left to
-- it. A place that expired is taken again: the request does run. Where no
-- place is left, this server may have lost its data, and is told of the reservation again; if it
-- had only been settled meanwhile, a worker will find that out.
local given, now = cmsgpack.unpack(ARGV[1]), now_ms()
for _, each in ipairs(given.held) do
  local is_known = false
  for _, subject in ipairs(each.places) do
    local expires_ms = redis.call('ZSCORE', key('places', subject), each.id)
    is_known = is_known or expires_ms
    -- Asked every third of a lease: whoever has more than two left was looked after by another.
    if not expires_ms or tonumber(expires_ms) - now <= given.lease_ms * 2 / 3 then
      hold_place(subject, each.id, now, given.lease_ms)
    end
  end
  if redis.call('EXISTS', key('reservation', each.id)) == 1 then
    redis.call('ZADD', key('reservations'), int(now + given.lease_ms), each.id)
  elseif not is_known then
    reserve(each.id, {subjects = each.subjects, windows = {}, tokens = each.tokens,
      cost = each.cost, day = each.day, bucket = 0}, now + given.lease_ms)
  end
end
return #given.held
