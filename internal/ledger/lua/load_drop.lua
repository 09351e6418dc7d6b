-- Drop reservations that no record and no row stands for, as if released. KEYS[7+2i-1] result, KEYS[7+2i] last order of the
-- user of entry i. ARGV: epoch, n, retention_ms, then per entry: order, quantity, tombstone. Reply: 1, or 0 when fenced.
local a = read_activity()
if fenced(a, ARGV[1]) then return 0 end
local ttl = keep_ms(a, now_ms(), ARGV[3])
for i = 1, tonumber(ARGV[2]) do
  local at = 3 + (i - 1) * 3
  local id, q = ARGV[at + 1], tonumber(ARGV[at + 2])
  if redis.call('HDEL', KEYS[4], id) == 1 and a.pending and a.pending >= q then
    a.pending = a.pending - q
    redis.call('DECRBY', KEYS[3], str(q))
  end
  redis.call('SET', KEYS[6 + 2 * i], ARGV[at + 3], 'PX', ttl)
  redis.call('SET', KEYS[7 + 2 * i], id, 'PX', ttl)
end
return 1
