-- Keep where Kafka has an order, for its buyer's place in the queue, as long as nothing has decided it. What was published again is
-- behind its first place: the later one counts.
-- KEYS[7+i] result of order i. ARGV: n, retention_ms, then per order: order, result.
local function place(result)
  return tonumber(string.match(result, '\31(%-?%d+)\31%d+$')) or -1
end
local now = now_ms()
local h = redis.pcall('HMGET', KEYS[6], 'ends_at', 'retention')
local ttl = keep_ms({ ends = int(h[1]), retention = int(h[2]) }, now, ARGV[2])
local n, ids = tonumber(ARGV[1]), {}
for i = 1, n do ids[i] = ARGV[1 + 2 * i] end
local held = redis.call('HMGET', KEYS[4], unpack(ids))
local marked = 0
for i = 1, n do
  if held[i] then
    local key, result = KEYS[7 + i], ARGV[2 + 2 * i]
    local set = redis.call('SET', key, result, 'NX', 'PX', ttl)
    if not set then
      local had = redis.call('GET', key)
      if not is_final(had) and place(had) < place(result) then set = redis.call('SET', key, result, 'PX', ttl) end
    end
    if set then marked = marked + 1 end
  end
end
return { marked, str(now) }
