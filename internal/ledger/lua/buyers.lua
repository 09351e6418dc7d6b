-- Mend the buyers by MySQL. ARGV: 'add' or 'free', n, then per buyer: user, order. Reply: how many changed.
-- add: where the user has none. free: by compare, unless the ledger has the order.
local a = read_activity()
if not a.loaded then return 0 end
local changed = 0
for i = 1, tonumber(ARGV[2]) do
  local user, id = ARGV[1 + 2 * i], ARGV[2 + 2 * i]
  if ARGV[1] == 'add' then
    changed = changed + redis.call('HSETNX', KEYS[5], user, id)
  elseif redis.call('HGET', KEYS[5], user) == id and redis.call('HEXISTS', KEYS[4], id) == 0 then
    changed = changed + redis.call('HDEL', KEYS[5], user)
  end
end
if changed > 0 then
  redis.call('HSET', KEYS[6], 'has_buyers', redis.call('HLEN', KEYS[5]) > 0 and '1' or '0')
end
return changed
