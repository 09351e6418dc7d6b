-- Open an activity that has been loaded. ARGV: channel, activity, epoch, version, stock, state. Reply: 1, or 0 when
-- fenced. The one place where pending is set: to the sum of its ledger, while nobody can reserve.
local a = read_activity()
if fenced(a, ARGV[3]) then return 0 end
local sum = 0
for _, entry in ipairs(redis.call('HVALS', KEYS[4])) do
  local q = int(string.match(entry, '^(%d+)\31'))
  if not q then return redis.error_reply('ERR a ledger entry of activity ' .. ARGV[2] .. ' is not readable') end
  sum = sum + q
end
redis.call('SET', KEYS[3], str(sum))
-- Unconditionally: nothing else sets them while the activity is not open, so what Redis has is older than the load's
-- snapshot, or of a MySQL that has lost it.
redis.call('SET', KEYS[1], ARGV[5])
redis.call('SET', KEYS[2], ARGV[4])
-- A change of state that came in during the load may be older or newer than the snapshot: the stricter one opens, and
-- the binlog, which resumes from before the load, brings the last word.
local rank = { open = 0, paused = 1, closed = 2 }
local state = ARGV[6]
if a.next and rank[a.next] and rank[a.next] > rank[state] then state = a.next end
redis.call('HSET', KEYS[6], 'state', state, 'has_buyers', redis.call('HLEN', KEYS[5]) > 0 and '1' or '0')
redis.call('HDEL', KEYS[6], 'next', 'why', 'doubtful')
a = read_activity()
redis.call('PUBLISH', ARGV[1], table.concat({ ARGV[2], str(now_ms()), str(math.max(available(a), 0)), state }, US))
return 1
