-- Put back open reservations. ARGV: epoch, n, then per entry: order, user, quantity, entry. Reply: 1, or 0 when fenced.
local a = read_activity()
if fenced(a, ARGV[1]) then return 0 end
for i = 1, tonumber(ARGV[2]) do
  local at = 2 + (i - 1) * 4
  if redis.call('HSETNX', KEYS[4], ARGV[at + 1], ARGV[at + 4]) == 1 and a.pending then
    redis.call('INCRBY', KEYS[3], ARGV[at + 3])
  end
  redis.call('HSETNX', KEYS[5], ARGV[at + 2], ARGV[at + 1])
end
return 1
