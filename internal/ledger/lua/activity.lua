-- Apply a changed row of the activity table. ARGV: channel, activity, item, starts_at, ends_at, max_per_user, state,
-- retention_ms.
-- Reply: 0 not in Redis, 1 applied, 2 the item differs (it never changes once loaded), 3 nothing differs.
local a = read_activity()
if not a.exists then return 0 end
if a.item and a.item ~= ARGV[3] then return 2 end
if a.state == 'recovering' then
  redis.call('HSET', KEYS[6], 'starts_at', ARGV[4], 'ends_at', ARGV[5], 'max_per_user', ARGV[6], 'next', ARGV[7], 'retention', ARGV[8])
  return 1
end
if a.starts == int(ARGV[4]) and a.ends == int(ARGV[5]) and a.max == int(ARGV[6]) and a.state == ARGV[7]
  and a.retention == int(ARGV[8]) then return 3 end
redis.call('HSET', KEYS[6], 'starts_at', ARGV[4], 'ends_at', ARGV[5], 'max_per_user', ARGV[6], 'state', ARGV[7],
  'retention', ARGV[8])
redis.call('PUBLISH', ARGV[1], table.concat({ ARGV[2], str(now_ms()), str(math.max(available(a), 0)), ARGV[7] }, US))
return 1
