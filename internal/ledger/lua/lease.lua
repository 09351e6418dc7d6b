-- The syncer's lease. KEYS[1] leader, KEYS[2] position. ARGV: what, holder, ttl_ms or position. Reply: 1, or 0 when
-- another holds it.
local holder = redis.call('GET', KEYS[1])
if ARGV[1] == 'acquire' then
  if holder and holder ~= ARGV[2] then
    -- A lease without an end, put back by a tool that keeps no expiries, would stop every syncer for good. Its holder, if there
    -- is one, renews it meanwhile.
    if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
    return 0
  end
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
