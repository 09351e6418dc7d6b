-- A slice of MySQL's orders. KEYS[7+2i-1] result, KEYS[7+2i] last order of the user of order i.
-- ARGV: epoch, n, retention_ms, then per order: order, user, dead, result. Reply: 1, or 0 when fenced.
local a = read_activity()
if fenced(a, ARGV[1]) then return 0 end
local now = now_ms()
local ttl = keep_ms(a, now, ARGV[3])
for i = 1, tonumber(ARGV[2]) do
  local at = 3 + (i - 1) * 4
  local id, user = ARGV[at + 1], ARGV[at + 2]
  local entry = redis.call('HGET', KEYS[4], id)
  if entry then
    redis.call('HDEL', KEYS[4], id)
    local q = int(string.match(entry, '^(%d+)\31')) or 0
    if a.pending and a.pending >= q then
      a.pending = a.pending - q
      redis.call('DECRBY', KEYS[3], str(q))
    end
  end
  if ARGV[at + 3] == '1' then
    if redis.call('HGET', KEYS[5], user) == id then redis.call('HDEL', KEYS[5], user) end
    redis.call('SET', KEYS[7 + 2 * i], id, 'PX', ttl)
  else
    redis.call('HSET', KEYS[5], user, id)
  end
  redis.call('SET', KEYS[6 + 2 * i], ARGV[at + 4], 'PX', ttl)
end
return 1
