-- One consistent look. Reply: exists, problem, state, same_server, visible, item, starts, ends, max, stock, version,
-- pending, ledger_len, buyers_len, epoch, now_ms, loaded.
local a = read_activity()
local function num(x) return x and str(x) or '' end
return {
  a.exists and 1 or 0, a.problem or '', a.state or '', a.exists and same_server(a.server, a.epoch) and 1 or 0,
  a.server ~= 'marker' and 1 or 0, a.item or '', num(a.starts), num(a.ends), num(a.max), num(a.stock), num(a.version),
  num(a.pending), a.open or 0, a.holders or 0, a.epoch or '', str(now_ms()), a.loaded and 1 or 0,
}
