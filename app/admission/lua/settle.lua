-- The ledger has taken in how sequences ended: what it says replaces what they had reserved.
-- ARGV: {figures = [{subject, version, amounts}], ended = [{id, tokens}]}
-- Returns how many reservations there were. Repeating it, or an older one after a later, does no
-- harm: figures are absolute and carry the ledger's version, and a reservation is dropped once.
local given, now, num_dropped = cmsgpack.unpack(ARGV[1]), now_ms(), 0
for _, each in ipairs(given.ended) do
  if drop_reservation(each.id, each.tokens, now) then
    num_dropped = num_dropped + 1
  end
end
put_spent(given.figures)
return num_dropped
