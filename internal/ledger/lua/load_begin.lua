-- Close an activity for a load. ARGV: channel, activity, epoch, item, starts_at, ends_at, max_per_user, retention_ms.
-- Reply: now_ms, ledger_len, doubtful. Ledger, stock and version survive where they are readable; buyers are built anew.
-- doubtful: this server is not the one that the entries were made on, so a release may be among the writes that it lost,
-- and an entry of an order that was refused may be back. It stays so until a load has finished.
local now = now_ms()
local function kind(key) return redis.call('TYPE', key).ok end
for i = 1, 3 do
  local k = kind(KEYS[i])
  if k ~= 'none' and (k ~= 'string' or not int(redis.call('GET', KEYS[i]))) then redis.call('DEL', KEYS[i]) end
end
local k = kind(KEYS[4])
if k ~= 'none' and k ~= 'hash' then redis.call('UNLINK', KEYS[4]) end
redis.call('UNLINK', KEYS[5])
k = kind(KEYS[6])
if k ~= 'none' and k ~= 'hash' then redis.call('UNLINK', KEYS[6]) end
local server = server_identity() or 'marker'
local was = redis.call('HMGET', KEYS[6], 'server', 'epoch', 'doubtful')
local doubtful = was[3] == '1' or not same_server(was[1], was[2])
redis.call('HSET', KEYS[6], 'item_id', ARGV[4], 'starts_at', ARGV[5], 'ends_at', ARGV[6], 'max_per_user', ARGV[7],
  'state', 'recovering', 'why', 'load', 'epoch', ARGV[3], 'server', server, 'has_buyers', '0',
  'doubtful', doubtful and '1' or '0', 'retention', ARGV[8])
redis.call('HDEL', KEYS[6], 'next')
if server == 'marker' then redis.call('SET', KEYS[7], ARGV[3]) else redis.call('DEL', KEYS[7]) end
redis.call('PUBLISH', ARGV[1], table.concat({ ARGV[2], str(now), '0', 'recovering' }, US))
return { str(now), redis.call('HLEN', KEYS[4]), doubtful and 1 or 0 }
