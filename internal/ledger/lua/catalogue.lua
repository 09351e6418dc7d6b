-- Replace the catalogue as a whole. KEYS[1] catalogue. ARGV: channel, event, field, value, …
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
