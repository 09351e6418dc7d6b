-- Reserve for each member of a batch, in order. KEYS[7+2i-1] result, KEYS[7+2i] user window of member i.
-- ARGV: n, channel, activity, then per member: order, nonce, user, quantity, window_ms, not_after_ms, extra.
-- Reply: now_ms, item, then per member: code, order, available, detail. Codes are ledger.Code.
local RESERVED, AGAIN, DECIDED, WRONG_SERVER, TOO_LATE, ALREADY, NOT_LOADED, RECOVERING, ENDED, NOT_STARTED, PAUSED,
  TOO_MANY, TOO_FREQUENT, SOLD_OUT, BAD_KEY = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14

local n, channel, activity = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local now = now_ms()
local now_text = str(now)
local a = read_activity()

local ids, users, result_keys = {}, {}, {}
for i = 1, n do
  local at = 3 + (i - 1) * 7
  ids[i], users[i], result_keys[i] = ARGV[at + 1], ARGV[at + 3], KEYS[6 + 2 * i]
end
local held = redis.pcall('HMGET', KEYS[4], unpack(ids))
local live = redis.pcall('HMGET', KEYS[5], unpack(users))
local results = redis.call('MGET', unpack(result_keys))
if held.err then held = {} end -- read_activity has seen it: the activity is not loaded
if live.err then live = {} end

-- Why nobody can reserve here, judged once for the whole call.
local closed
if not a.exists or (a.problem and a.state ~= 'recovering') then
  closed = NOT_LOADED
elseif not same_server(a.server, a.epoch) then
  closed = WRONG_SERVER
end
local phase
if a.state == 'recovering' then
  phase = RECOVERING
elseif not closed then
  if a.state == 'closed' or now >= a.ends then
    phase = ENDED
  elseif now < a.starts then
    phase = NOT_STARTED
  elseif a.state == 'paused' then
    phase = PAUSED
  elseif a.state ~= 'open' then
    phase = RECOVERING -- a state that this version does not know never sells
  end
end

local left = available(a)
local taken = 0
local new_of_order, new_of_user = {}, {}
local entries, holders = {}, {}
local shared = {}

local function judge(i)
  local at = 3 + (i - 1) * 7
  local id, nonce, user = ids[i], ARGV[at + 2], users[i]

  local mine = held[i] or (new_of_order[id] and entries[new_of_order[id]])
  if mine then
    local q, ms, by, rest = string.match(mine, '^(%d+)\31(%d+)\31([^\31]*)\31(.*)$')
    if not q then return BAD_KEY, 'ledger entry is not readable' end
    if by ~= nonce and by ~= SHARED then
      local again = table.concat({ q, ms, SHARED, rest }, US)
      if held[i] then shared[id] = again else entries[new_of_order[id]] = again end
    end
    return AGAIN, ms .. US .. (results[i] or '')
  end
  if results[i] then return DECIDED, results[i] end
  if closed then return closed, a.problem or '' end
  if now > tonumber(ARGV[at + 6]) then return TOO_LATE, '' end
  local other = new_of_user[user] or live[i]
  if other then return ALREADY, other end
  if phase then return phase, phase == NOT_STARTED and str(a.starts) or '' end
  local q = int(ARGV[at + 4])
  if not q or q < 1 or q > a.max then return TOO_MANY, str(a.max) end

  local window = ARGV[at + 5]
  if window ~= '0' then
    local key = KEYS[7 + 2 * i]
    local set = redis.pcall('SET', key, id, 'NX', 'PX', window)
    if set and set.err then return BAD_KEY, set.err end
    if not set then
      local opener = redis.pcall('GET', key)
      if type(opener) == 'table' then return BAD_KEY, opener.err end
      -- A repeat of the call that opened the window is not a second try.
      if opener ~= id then return TOO_FREQUENT, str(math.max(redis.call('PTTL', key), 0)) end
    end
  end
  if left < q then return SOLD_OUT, '' end

  left = left - q
  taken = taken + q
  entries[#entries + 1] = id
  entries[#entries + 1] = ARGV[at + 4] .. US .. now_text .. US .. nonce .. US .. a.item .. US .. user .. US .. ARGV[at + 7]
  new_of_order[id] = #entries
  holders[#holders + 1] = user
  holders[#holders + 1] = id
  new_of_user[user] = id
  return RESERVED, ''
end

local out = { now, a.item or '0' } -- as integers, numbers need no formatting; an item may be beyond what a number holds
for i = 1, n do
  local at, code, detail = 4 * i, judge(i)
  out[at - 1], out[at], out[at + 1], out[at + 2] = code, ids[i], left, detail
end

-- Every type was checked above, so that nothing but a right that was taken away meanwhile can stop these half-way. Then too Redis
-- must not offer more than there is: what lowers the available units comes first.
if taken > 0 then redis.call('INCRBY', KEYS[3], str(taken)) end
for id, again in pairs(shared) do
  redis.call('HSET', KEYS[4], id, again)
end
if taken > 0 then
  redis.call('HSET', KEYS[4], unpack(entries))
  redis.call('HSET', KEYS[5], unpack(holders))
  if a.holders == 0 then redis.call('HSET', KEYS[6], 'has_buyers', '1') end
  if left == 0 then redis.call('PUBLISH', channel, table.concat({ activity, now_text, '0', '' }, US)) end
end
return out
