-- Sequences are no longer in flight. Those that never were accepted give back what they reserved;
-- for the others the ledger will (settle.lua).
-- ARGV: {ids, places, is_cancelled}
local given, now = cmsgpack.unpack(ARGV[1]), now_ms()
for _, id in ipairs(given.ids) do
  for _, subject in ipairs(given.places) do
    redis.call('ZREM', key('places', subject), id)
    redis.call('ZREM', key('entering', subject), id)
  end
  if given.is_cancelled then
    drop_reservation(id, 0, now)
  end
end
return #given.ids
