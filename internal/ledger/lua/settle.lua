-- What MySQL decided. KEYS[7+2i-1] result, KEYS[7+2i] last order of the user of order i.
-- ARGV: n, channel, activity, version ('0': orders only), stock, overwrite, retention_ms, item ('0': the activity's),
-- then per order: order, user, dead, status, result.
-- Reply: code, now_ms, available, dropped, advanced. Nobody ever counts the stock down: it is set, by version.
local SETTLED, NOT_LOADED, BROKEN = 0, 1, 2
local n, channel, activity, version, stock = tonumber(ARGV[1]), ARGV[2], ARGV[3], int(ARGV[4]), ARGV[5]
local overwrite, retention, item = ARGV[6] == '1', ARGV[7], ARGV[8]
local now = now_ms()
local a = read_activity()
-- What is not loaded needs no settling: the load reads the same rows from MySQL, or what it has not read the binlog brings
-- again, from before the load on. Settling half of it meanwhile would be worse than none: an entry that is dropped while the
-- stock that goes with it cannot be set yet is a unit to sell twice.
if not a.loaded then return { NOT_LOADED, str(now), '0', 0, 0 } end

-- The row of the activity was given another item, whose stock is nothing to what was loaded.
if item ~= '0' and item ~= a.item then version = nil end

local ids, users, result_keys = {}, {}, {}
for i = 1, n do
  local at = 8 + (i - 1) * 5
  ids[i], users[i], result_keys[i] = ARGV[at + 1], ARGV[at + 2], KEYS[6 + 2 * i]
end
local held, live, results = {}, {}, {}
if n > 0 then
  held = redis.call('HMGET', KEYS[4], unpack(ids))
  live = redis.call('HMGET', KEYS[5], unpack(users))
  results = redis.call('MGET', unpack(result_keys))
end

local units, dropped, seen = 0, {}, {}
for i = 1, n do
  if held[i] and not seen[ids[i]] then
    seen[ids[i]] = true
    units = units + (int(string.match(held[i], '^(%d+)\31')) or 0)
    dropped[#dropped + 1] = ids[i]
  end
end
if units > a.pending then
  -- Clamping would hide an oversell. Close, and let the load count anew.
  close_for_recovery(channel, activity, now, 'pending would fall below zero')
  return { BROKEN, str(now), '0', 0, 0 }
end

local ttl = keep_ms(a, now, retention)
-- Stopped half-way, by a right that was taken away, Redis offers too little and not too much: the stock falls before pending does.
-- The first write is one that a full Redis allows, and the others with it.
if #dropped > 0 then redis.call('HDEL', KEYS[4], unpack(dropped)) end
local advanced = 0
if version and version > a.version then
  redis.call('SET', KEYS[1], stock)
  redis.call('SET', KEYS[2], ARGV[4])
  a.stock = tonumber(stock)
  advanced = 1
end
if #dropped > 0 then redis.call('DECRBY', KEYS[3], str(units)) end
local event = { activity, str(now), '', '' }
local freed = {}
for i = 1, n do
  local at = 8 + (i - 1) * 5
  if ARGV[at + 3] == '1' then
    if live[i] == ids[i] then
      redis.call('HDEL', KEYS[5], users[i])
      freed[users[i]] = true
      redis.call('SET', KEYS[7 + 2 * i], ids[i], 'PX', ttl)
    elseif users[i] ~= '' and not live[i] then
      redis.call('SET', KEYS[7 + 2 * i], ids[i], 'NX', 'PX', ttl)
    end
  end
  if overwrite or not is_final(results[i]) then
    redis.call('SET', result_keys[i], ARGV[at + 5], 'PX', ttl)
  end
  event[#event + 1] = ids[i]
  event[#event + 1] = ARGV[at + 4]
end
if next(freed) and redis.call('HLEN', KEYS[5]) == 0 then
  redis.call('HSET', KEYS[6], 'has_buyers', '0')
end

a.pending = a.pending - units
local left = available(a)
if n > 0 or advanced == 1 then
  event[3] = str(math.max(left, 0))
  redis.call('PUBLISH', channel, table.concat(event, US))
end
return { SETTLED, str(now), str(left), #dropped, advanced }
