-- Remove an ended activity. Reply: 1 removed (or not there), 0 refused: reservations are open, or it has not ended.
local a = read_activity()
local open = redis.pcall('HLEN', KEYS[4]) -- asked by itself: the ledger may stand without its activity
if type(open) ~= 'number' or open > 0 then return 0 end
if a.exists and a.state ~= 'closed' and a.ends and now_ms() < a.ends then return 0 end
redis.call('UNLINK', unpack(KEYS))
return 1
