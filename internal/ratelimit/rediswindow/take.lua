-- KEYS[1] sorted set: one member for each request that passed, scored by its time in microseconds
-- ARGV    limit, window in microseconds, a member that nobody else uses
-- Gives   how many may still pass (-1: refused), microseconds until the next may, microseconds until all may
local key, limit, window = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

local function score(rank)
  return tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2])
end
-- A key lives as long as its newest member counts. TTLs have milliseconds; one more never forgets early.
local function keep()
  redis.call('PEXPIRE', key, math.ceil(window / 1000) + 1)
end

redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now - window))
local n = redis.call('ZCARD', key)
if n > 0 and score(-1) > now then
  -- The clock went back. What passed after the time that it shows now counts as of now: refused for a window at most, and
  -- not for as long as the clock went back.
  for _, m in ipairs(redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf')) do
    redis.call('ZADD', key, string.format('%.0f', now), m)
  end
  keep()
end
if n >= limit then
  return {-1, score(0) + window - now, score(-1) + window - now}
end
redis.call('ZADD', key, string.format('%.0f', now), ARGV[3])
keep()
return {limit - n - 1, 0, window}
