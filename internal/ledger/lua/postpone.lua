-- MySQL was short of stock for these orders, and they shall be tried again: they stay open, and the ledger notes the tries, which the
-- sweep publishes with them. ARGV: n, then per order: order, tries. Reply: code, then per order 1 (noted) or 0 (the ledger does
-- not have it, so nobody would publish it again).
local SETTLED, NOT_LOADED = 0, 1
local a = read_activity()
if not a.loaded then return { NOT_LOADED } end
local reply, notes = { SETTLED }, {}
for i = 1, tonumber(ARGV[1]) do
  local id, tries = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local entry = redis.call('HGET', KEYS[4], id)
  reply[i + 1] = 0
  if entry then
    local known = string.match(entry, '^%d+\31%d+\31[^\31]*\31%d+\31[^\31]*\31[^\31]*\31(%d+)$')
    local rest = known and string.sub(entry, 1, -#known - 2) or entry
    notes[#notes + 1] = id
    notes[#notes + 1] = rest .. US .. str(math.max(tonumber(known or '0'), tries))
    reply[i + 1] = 1
  end
end
if #notes > 0 then redis.call('HSET', KEYS[4], unpack(notes)) end
return reply
