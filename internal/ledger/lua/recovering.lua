-- Close an activity until it is loaded again. ARGV: channel, activity, why. Reply: 0 not in Redis, 1 done.
local a = read_activity()
if not a.exists then return 0 end
close_for_recovery(ARGV[1], ARGV[2], now_ms(), ARGV[3])
return 1
