-- Compare and set the stock at an equal version. ARGV: channel, activity, version, have, want. Reply: 1 set, 0 not.
local a = read_activity()
if not a.loaded or a.version ~= int(ARGV[3]) or a.stock ~= int(ARGV[4]) then return 0 end
redis.call('SET', KEYS[1], ARGV[5])
a.stock = int(ARGV[5])
redis.call('PUBLISH', ARGV[1], table.concat({ ARGV[2], str(now_ms()), str(math.max(available(a), 0)), '' }, US))
return 1
