-- Keep where Kafka has an order, for its buyer's place in the queue, as long as nothing has decided it. What was published again is
-- behind its first place: the later one counts.
-- KEYS[7+i] result of order i. ARGV: n, retention_ms, then per order: order, result.
local function place(result)
  return tonumber(string.match(result, '\31(%-?%d+)\31%d+$')) or -1
end
local a = read_activity()
local now = now_ms()
local ttl = keep_ms(a, now, ARGV[2])
local marked = 0
for i = 1, tonumber(ARGV[1]) do
  if redis.call('HEXISTS', KEYS[4], ARGV[1 + 2 * i]) == 1 then
    local had = redis.call('GET', KEYS[7 + i])
    if not had or not is_final(had) and place(had) < place(ARGV[2 + 2 * i]) then
      redis.call('SET', KEYS[7 + i], ARGV[2 + 2 * i], 'PX', ttl)
      marked = marked + 1
    end
  end
end
return { marked, str(now) }
