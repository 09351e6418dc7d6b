-- Replace the catalogue as a whole. KEYS[1] catalogue. ARGV: channel, event, field, value, …
redis.call('DEL', KEYS[1])
for i = 3, #ARGV, 1000 do -- unpack() gives 8,000 values at most
  redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
