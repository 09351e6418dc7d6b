-- Move landed offsets forward, never back: two workers may hold a partition for a moment. KEYS[1] landed.
-- ARGV: partition, offset, time_ms, …
for i = 1, #ARGV, 3 do
  local at = redis.call('HGET', KEYS[1], ARGV[i])
  local offset = at and tonumber(string.match(at, '^(%d+)'))
  if not offset or tonumber(ARGV[i + 1]) >= offset then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1] .. ' ' .. ARGV[i + 2])
  end
end
return 1
