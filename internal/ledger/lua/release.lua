-- Give back a reservation that was never published, or fence one that may never have been made. KEYS[8] result,
-- KEYS[9] the user's last order.
-- ARGV: channel, activity, order, nonce, user, max_age_ms, retention_ms, tombstone. Reply: code, now_ms.
local RELEASED, KEPT, DECIDED = 0, 1, 2
local channel, activity, id, nonce, user = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now = now_ms()
local a = read_activity()
-- On a server that may have lost writes, or while it is being loaded, an entry that is not there proves nothing: the sweep may
-- have published it before. Not answered is unknown, and the caller asks again.
if not a.loaded or not same_server(a.server, a.epoch) then
  return redis.error_reply('NOTLOADED activity ' .. activity .. ' cannot release now: ' .. (a.problem or a.state))
end
local entry = redis.call('HGET', KEYS[4], id)
local result = redis.pcall('GET', KEYS[8])
if type(result) ~= 'string' then result = nil end
local ttl = keep_ms(a, now, ARGV[7])

if not entry then
  if result and not string.find(result, '^FAILED\31released\31') and not string.find(result, '^FAILED\31refused\31') then
    return { is_final(result) and DECIDED or KEPT, str(now) }
  end
  -- The tombstone stops a copy of the reserve call that is still on its way.
  redis.call('SET', KEYS[8], ARGV[8], 'PX', ttl)
  return { RELEASED, str(now) }
end

local q, ms, by = string.match(entry, '^(%d+)\31(%d+)\31([^\31]*)\31')
if not q then return redis.error_reply('ERR ledger entry of ' .. id .. ' is not readable') end
-- Another request with the same id may have published it; and from the publish budget on the sweep may have.
if by ~= nonce or now - tonumber(ms) > tonumber(ARGV[6]) then return { KEPT, str(now) } end

local units = tonumber(q)
if units > a.pending then -- never clamped: see settle
  close_for_recovery(channel, activity, now, 'pending would fall below zero')
  return redis.error_reply('NOTLOADED activity ' .. activity .. ': pending would fall below zero')
end
redis.call('HDEL', KEYS[4], id)
redis.call('SET', KEYS[8], ARGV[8], 'PX', ttl)
redis.call('DECRBY', KEYS[3], q) -- last: stopped half-way, Redis offers too little and not too much
if redis.pcall('HGET', KEYS[5], user) == id then
  redis.call('HDEL', KEYS[5], user)
  redis.call('SET', KEYS[9], id, 'PX', ttl)
  if redis.call('HLEN', KEYS[5]) == 0 then redis.call('HSET', KEYS[6], 'has_buyers', '0') end
end
a.pending = a.pending - units
redis.call('PUBLISH', channel, table.concat({ activity, str(now), str(math.max(available(a), 0)), '', id, 'FAILED' }, US))
return { RELEASED, str(now) }
