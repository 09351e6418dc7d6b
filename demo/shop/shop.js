// The buyer's side of a sale: a countdown on the server's clock, one request to buy, and the order's live result.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const t = data.t;
const base = `/seckill/${data.activity}`;
const el = (id) => document.getElementById(id);
const fill = (text, n) => text.replace('{n}', n);

let sale = null;        // the last answer of the gateway about the sale
let ahead = 0;          // the server's clock minus ours, in ms
let order = null;       // this buyer's order, as last heard
let stream = null;      // follows it
let blockedUntil = 0;   // the buyer was asked to wait until then
let sending = false;
const dead = ['failed', 'cancelled', 'expired', 'refunded', 'closed'];
const headers = { 'Accept-Language': data.lang };

// ---- the sale ----

async function look() {
  let next = 2000;
  try {
    const sent = Date.now();
    const r = await fetch(base, { headers });
    const now = Date.now();
    if (r.ok) {
      sale = await r.json();
      // The answer is as old as half its way; of two estimates, one is as good as the other within that.
      ahead = sale.server_time - (sent + now) / 2;
    } else if (r.status === 503) {
      sale = { ...sale, state: 'recovering' };
    } else if (r.status === 404) {
      sale = { ...sale, state: 'ended' };
    }
  } catch { /* the network: ask again */ }
  drawOrder();
  if (sale && sale.state === 'ended') { next = 5000; findNext(); }
  setTimeout(look, next);
}

async function findNext() {
  try {
    const r = await fetch('/api/sale');
    if (r.ok && (await r.json()).activity_id !== data.activity) el('next').hidden = false;
  } catch { /* later */ }
}

const serverNow = () => Date.now() + ahead;

// stateNow is the gateway's word, moved on by the clock: the last answer may be two seconds old.
function stateNow() {
  if (!sale || !sale.state) return 'loading';
  let s = sale.state;
  if (s === 'not_started' && serverNow() >= sale.starts_at) s = 'open';
  if (s === 'open' && serverNow() >= sale.ends_at) s = 'ended';
  if (s === 'open' && sale.sold_out) s = 'sold_out';
  return s;
}

// ---- the page ----

function draw() {
  const s = stateNow();
  el('sale').dataset.state = s;
  const clock = el('clock');
  let left = null;
  if (s === 'not_started') left = sale.starts_at - serverNow();
  if (s === 'open' || s === 'sold_out') left = sale.ends_at - serverNow();
  clock.hidden = left === null;
  const label = { loading: t.loading, not_started: t.until_start, open: t.until_end, sold_out: t.until_end, ended: t.over }[s] || t[s];
  setText('clock-label', label);
  if (left !== null) {
    const secs = Math.max(0, Math.ceil(left / 1000));
    const parts = [Math.floor(secs / 3600), Math.floor(secs / 60) % 60, secs % 60];
    clock.querySelectorAll('b').forEach((b, i) => {
      const text = String(parts[i]).padStart(2, '0');
      if (b.textContent !== text) b.textContent = text;
    });
  }
  drawButton(s);
}

function drawButton(s) {
  const buy = el('buy');
  if (!buy) return;
  const wait = Math.ceil((blockedUntil - Date.now()) / 1000);
  const live = order && !dead.includes(order.status);
  let text = t[s] || t.loading;
  let on = false;
  if (sending) text = t.sending;
  else if (s === 'open' && wait > 0) text = fill(t.retry_in, wait);
  else if (s === 'open') { text = t.buy; on = true; }
  buy.textContent = text;
  buy.disabled = !on;
  buy.parentElement.hidden = Boolean(live);
}

function setText(id, text) {
  const e = el(id);
  if (e.textContent !== text) e.textContent = text;
}

function say(text) {
  el('message').hidden = !text;
  setText('message', text || '');
}

function drawOrder() {
  const box = el('result');
  box.hidden = !order;
  draw();
  if (!order) return;
  const waiting = order.status === 'queued' || order.status === 'processing';
  let kind = 'good';
  let title = t[order.status] || order.status;
  let hint = '';
  if (waiting) {
    kind = 'wait';
    hint = t.queued_hint;
    if (order.position > 0) hint = fill(t.ahead, order.position) + ' · ' + hint;
    else if (order.position === 0) hint = t.next_up + ' · ' + hint;
  } else if (order.status === 'failed') {
    kind = 'bad';
    hint = order.reason === 'sold_out' ? t.failed_sold_out : t.failed_other;
  } else if (dead.includes(order.status)) {
    kind = 'bad';
    title = t.cancelled;
    hint = stateNow() === 'open' ? t.cancelled_hint : '';
  } else if (order.status === 'confirmed') {
    hint = t.confirmed_hint;
  } else if (order.status === 'paid') {
    hint = t.paid_hint;
  }
  box.className = 'result ' + kind;
  box.dataset.status = order.status;
  setText('result-title', title);
  setText('result-hint', hint);
  setText('result-order', t.order + ' ' + order.order_id);
  el('result-order').hidden = waiting || order.status === 'failed';
  el('acts').hidden = order.status !== 'confirmed';
}

// ---- the order ----

async function buy() {
  if (sending) return;
  sending = true;
  say('');
  draw();
  try {
    const r = await fetch(base + '/orders', {
      method: 'POST', headers: { ...headers, 'Content-Type': 'application/json' }, body: '{"quantity":1}',
    });
    const a = await r.json();
    if (r.status === 202) {
      follow(a.order_id, { order_id: a.order_id, status: a.status, reason: a.reason, position: -1 });
    } else if (a.reason === 'already_ordered' && a.order_id) {
      say(a.msg);
      follow(a.order_id);
    } else if (a.reason === 'no_user') {
      location.reload();
    } else {
      const wait = Number(r.headers.get('Retry-After')) || (r.status === 429 || r.status === 503 ? 1 : 0);
      if (a.reason !== 'sold_out') blockedUntil = Date.now() + wait * 1000;
      else if (sale) sale.sold_out = true;
      say(a.msg || t.again);
    }
  } catch {
    // No answer: the order may stand all the same, so look before trying again.
    say(t.offline);
    await mine();
  } finally {
    sending = false;
    drawOrder();
  }
}

// follow shows an order until it is decided. The browser reconnects by itself after a break.
function follow(id, first) {
  if (stream) stream.close();
  if (first) { order = first; drawOrder(); }
  stream = new EventSource(`${base}/orders/${id}`);
  stream.onmessage = (e) => {
    order = JSON.parse(e.data);
    if (order.status !== 'queued' && order.status !== 'processing') { stream.close(); stream = null; }
    drawOrder();
  };
}

// mine brings back an order that was made earlier, in another tab or before a reload.
async function mine() {
  try {
    const r = await fetch(base + '/orders/mine', { headers });
    if (!r.ok) return;
    const o = await r.json();
    if (o.status === 'queued' || o.status === 'processing') return follow(o.order_id, o);
    order = o;
    drawOrder();
  } catch { /* the page works without */ }
}

// change asks the shop to pay or cancel, and then waits until the gateway has heard of it.
async function change(what) {
  const buttons = [el('pay'), el('cancel')];
  buttons.forEach((b) => { b.disabled = true; });
  say('');
  try {
    const r = await fetch(`/orders/${order.order_id}/${what}`, { method: 'POST' });
    if (!r.ok) throw new Error(r.status);
    for (let i = 0; i < 50 && order.status === 'confirmed'; i++) {
      const s = await fetch(`${base}/orders/${order.order_id}`, { headers });
      if (s.ok) order = await s.json();
      if (order.status === 'confirmed') await new Promise((done) => setTimeout(done, 100));
    }
  } catch {
    say(t.change_failed);
  }
  buttons.forEach((b) => { b.disabled = false; });
  drawOrder();
}

if (el('buy')) {
  el('buy').addEventListener('click', buy);
  el('pay').addEventListener('click', () => change('pay'));
  el('cancel').addEventListener('click', () => change('cancel'));
  mine();
}
look();
setInterval(draw, 200);
