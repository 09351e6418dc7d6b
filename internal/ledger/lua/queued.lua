-- Keep where Kafka has an order, for its buyer's place in the queue, as long as nothing has decided it.
-- KEYS[7+i] result of order i. ARGV: n, retention_ms, then per order: order, result.
local a = read_activity()
local now = now_ms()
local ttl = keep_ms(a, now, ARGV[2])
local marked = 0
for i = 1, tonumber(ARGV[1]) do
  if redis.call('HEXISTS', KEYS[4], ARGV[1 + 2 * i]) == 1 and
    redis.call('SET', KEYS[7 + i], ARGV[2 + 2 * i], 'NX', 'PX', ttl) then
    marked = marked + 1
  end
end
return { marked, str(now) }
