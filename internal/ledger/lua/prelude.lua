-- Shared by every script: Go puts this text in front of it. KEYS[1..7] are always
-- stock, version, pending, ledger, buyers, activity, marker of one activity, all in one slot.
--
-- Encodings, private to the ledger package (see entry.go and result.go; US is the byte 31, which no field can hold):
--   ledger entry  quantity US reserved_ms US nonce US item US user US extra {US tries, once MySQL was short of stock for it}
--   result        status US reason US user US item US quantity US partition US offset US at_ms
--   event         activity US now_ms US available US state {US order US status}
local US = '\31'
local SHARED = '*' -- the nonce of a reservation that a second request has met

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A number that a script may compute with: a non-negative integer that a double holds exactly. Anything else is nil, so
-- that a missing or mangled key is never taken for zero.
local function int(s)
  if type(s) ~= 'string' or #s > 16 or not string.find(s, '^%d+$') then return nil end
  local n = tonumber(s)
  if n >= 9007199254740992 then return nil end -- from there on neighbours read alike
  return n
end

-- An id is only compared and handed on, as text: shops use all of BIGINT.
local function id_text(s)
  if type(s) ~= 'string' or #s > 19 or not string.find(s, '^[1-9]%d*$') then return nil end
  return s
end

-- tostring() turns large numbers into 1e+15.
local function str(n) return string.format('%.0f', n) end

-- Which server is this? The run id tells a restart and a fail-over, the replication id tells a fail-over and back.
-- Managed services may hide them; then the answer is nil and the marker key stands in, which is weaker: it tells a
-- server that lost everything, not one that lost its last writes.
local function server_identity()
  local a = redis.pcall('INFO', 'server')
  local b = redis.pcall('INFO', 'replication')
  if type(a) ~= 'string' or type(b) ~= 'string' then return nil end
  local run, repl = string.match(a, 'run_id:(%x+)'), string.match(b, 'master_replid:(%x+)')
  if not run or not repl then return nil end
  return run .. ':' .. repl
end

local function same_server(loaded_on, epoch)
  if not loaded_on then return false end
  if loaded_on == 'marker' then return redis.pcall('GET', KEYS[7]) == epoch end
  return server_identity() == loaded_on
end

-- Reads an activity without changing it. problem is nil only where every key is there and makes sense together.
local function read_activity()
  local a = { }
  local h = redis.pcall('HMGET', KEYS[6], 'item_id', 'starts_at', 'ends_at', 'max_per_user', 'state', 'server',
    'epoch', 'has_buyers', 'next', 'why', 'retention')
  if h.err then
    a.problem = 'activity: ' .. h.err
    return a
  end
  a.state = h[5]
  a.exists = h[5] and true or false
  if not a.exists then
    a.problem = 'not loaded'
    return a
  end
  a.item, a.starts, a.ends, a.max = id_text(h[1]), int(h[2]), int(h[3]), int(h[4])
  a.server, a.epoch, a.next, a.why, a.retention = h[6], h[7], h[9], h[10], int(h[11])
  local s = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3]) -- a key of another type reads as missing
  a.stock, a.version, a.pending = int(s[1]), int(s[2]), int(s[3])
  a.version_text = s[2]
  local open = redis.pcall('HLEN', KEYS[4])
  local holders = redis.pcall('HLEN', KEYS[5])
  if type(open) ~= 'number' then
    a.problem = 'ledger: ' .. open.err
  elseif type(holders) ~= 'number' then
    a.problem = 'buyers: ' .. holders.err
  elseif not (a.item and a.starts and a.ends and a.max) then
    a.problem = 'activity: a field is missing or not a number in range'
  elseif not a.stock then
    a.problem = 'stock is missing or not a number'
  elseif not a.version then
    a.problem = 'version is missing or not a number'
  elseif not a.pending then
    a.problem = 'pending is missing or not a number'
  elseif a.pending < open then
    a.problem = 'pending ' .. str(a.pending) .. ' is less than the ledger has entries (' .. open .. ')'
  elseif a.pending > 0 and open == 0 then
    a.problem = 'pending is ' .. str(a.pending) .. ' but the ledger is empty'
  elseif h[8] == '1' and holders == 0 then
    a.problem = 'the buyers are missing'
  end
  a.open = type(open) == 'number' and open or 0
  a.holders = type(holders) == 'number' and holders or 0
  a.loaded = not a.problem and a.state ~= 'recovering'
  return a
end

local function available(a)
  if not a.loaded then return 0 end
  return a.stock - a.pending
end

-- How long results and tombstones stand: retention after the end, or from now on if that is later. The syncer's is kept with the
-- activity, so that all go by it; what the caller has is for activities that are not in Redis, that were loaded before it was kept,
-- or where it makes no sense: a script that fails at SET for a PX of 0 would have done half of its work.
local function keep_ms(a, now, retention)
  local rest = (a.ends or 0) - now
  if rest < 0 then rest = 0 end
  local kept = a.retention or 0
  return str(rest + (kept > 0 and kept or tonumber(retention)))
end

local function is_final(result)
  return result and not string.find(result, '^QUEUED' .. US) and not string.find(result, '^PROCESSING' .. US)
end

local function close_for_recovery(channel, activity, now, why)
  redis.call('HSET', KEYS[6], 'state', 'recovering', 'why', why)
  redis.call('PUBLISH', channel, table.concat({ activity, str(now), '0', 'recovering' }, US))
end

-- A load may write only while it is the newest one, nobody has closed the activity for another reason since it began, and
-- Redis is still the server that it began on.
local function fenced(a, epoch)
  return not a.exists or a.epoch ~= epoch or a.state ~= 'recovering' or a.why ~= 'load' or not same_server(a.server, a.epoch)
end
