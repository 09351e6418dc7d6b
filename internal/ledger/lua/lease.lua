-- The syncer's lease. KEYS[1] leader, KEYS[2] position. ARGV: what, holder, ttl_ms or position. Reply: 1, or 0 when
-- another holds it.
local holder = redis.call('GET', KEYS[1])
if ARGV[1] == 'acquire' then
  if holder and holder ~= ARGV[2] then return 0 end
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
if holder ~= ARGV[2] then return 0 end
if ARGV[1] == 'position' then
  redis.call('SET', KEYS[2], ARGV[3])
else
  redis.call('DEL', KEYS[1])
end
return 1
