/*
 * The reservation protocol of docs/protocol.md, small enough to be searched whole by SPIN: see docs/model.md, which explains it to
 * readers who know no Promela, and model/check.sh, which runs it. Each script of Redis and each transaction of MySQL is one
 * indivisible step (d_step); everything else may come in between any two steps.
 *
 * Sizes: ORDERS orders for STOCK units, WORKERS workers, SYNCERS syncers; each of what follows happens at most so often:
 * FAULTS losses or fail-overs of Redis, CRASHES of workers, COPIES of a reserve call that are stuck.
 * A rule is left out by -D and its name: those are the words in capitals behind #ifdef and #ifndef.
 */
#ifndef ORDERS
#define ORDERS 2
#endif
#ifndef STOCK
#define STOCK 1
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef SYNCERS
#define SYNCERS 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef COPIES
#define COPIES 1
#endif
#define RECORDS 5 /* that Kafka can hold; the monitor shows that it suffices */
#define NOBODY 7

#ifdef ONEUSER
#define USER(o) 0 /* both orders are of one buyer */
#else
#define USER(o) (o)
#endif

/* ---- MySQL ---- */
mtype:row = { NONE, LIVE, DEAD };
byte stock = STOCK;
byte version = 1;
mtype:row row[ORDERS] = NONE;
byte events = 0; /* of the binlog: one for each order that has landed */
byte ev_order[ORDERS], ev_version[ORDERS], ev_stock[ORDERS];

/* ---- Kafka ---- */
byte record[RECORDS]; /* order + 1, so that what is not written yet is 0 */
byte tail = 0;
byte marked = 0; /* the workers' offset */

/* ---- Redis ---- */
mtype:state = { EMPTY, RECOVERING, OPEN };
mtype:entry = { FREE, OWN, KEPT }; /* KEPT: put back by a load, so nobody can release it */
mtype:result = { NORESULT, TOMBSTONE, DECIDED };
typedef Redis {
	mtype:state state;
	bool same; /* the server is the one that it was loaded on */
	bool doubtful;
	byte epoch;
	byte stock;
	byte version;
	byte pending;
	mtype:entry ledger[ORDERS];
	byte buyer[ORDERS]; /* user -> order */
	mtype:result result[ORDERS];
}
Redis r, replica;
bool copied;

/* ---- What is under way ---- */
mtype:told = { NOTHING, PROCESSING, QUEUED, REFUSED };
mtype:told told[ORDERS] = NOTHING;
bool begun[ORDERS];      /* its reserve call has been made */
bool publishing[ORDERS]; /* its gateway may still publish it */
bool stuck[ORDERS];      /* a copy of its reserve call is still on its way */
bool expired[ORDERS];    /* past the deadline of its reserve call */
bool old[ORDERS];        /* past its publish budget */
byte position = 0;       /* in the binlog */
byte epochs = 1;
byte faults = FAULTS, crashes = CRASHES, copies = COPIES;
#if SYNCERS > 1
byte takeovers = 1; /* a second syncer begins a load while the first is at one */
#endif
bool loading = false;

/* ---- The scripts ---- */

#define same_server (r.state != EMPTY && r.same)
#define selling (r.state == OPEN && r.same)

#ifdef NO_SERVER
#define may_reserve (r.state == OPEN)
#else
#define may_reserve selling
#endif
#ifdef NO_RELEASE_SERVER
#define may_release (r.state == OPEN)
#else
#define may_release selling
#endif

/* answer: 0 reserved, 1 refused, 2 it was there before or is decided */
inline reserve(o, answer)
{
	d_step {
		if
		:: r.ledger[o] != FREE -> answer = 2
		:: else ->
			if
			:: r.result[o] != NORESULT -> answer = 2
			:: else ->
				if
				:: !may_reserve -> answer = 1
				:: else ->
					if
#ifndef NO_DEADLINE
					:: expired[o] -> answer = 1
					:: !expired[o] && (r.buyer[USER(o)] != NOBODY || r.stock <= r.pending) -> answer = 1
					:: !expired[o] && r.buyer[USER(o)] == NOBODY && r.stock > r.pending ->
#else
					:: r.buyer[USER(o)] != NOBODY || r.stock <= r.pending -> answer = 1
					:: r.buyer[USER(o)] == NOBODY && r.stock > r.pending ->
#endif
						r.ledger[o] = OWN;
						r.pending++;
						r.buyer[USER(o)] = o;
						answer = 0
					fi
				fi
			fi
		fi
	}
}

/* answer: 0 released, 1 kept or decided, 2 none */
inline release(o, answer)
{
	d_step {
		if
		:: !may_release -> answer = 2
		:: else ->
			if
			:: r.ledger[o] == FREE ->
				if
				:: r.result[o] == DECIDED -> answer = 1
				:: else ->
#ifndef NO_TOMBSTONE
					r.result[o] = TOMBSTONE;
#endif
					answer = 0
				fi
			:: else ->
				if
#ifdef NO_RELEASE_AGE
				:: r.ledger[o] == KEPT -> answer = 1
				:: else ->
#else
				:: r.ledger[o] == KEPT || old[o] -> answer = 1
				:: else ->
#endif
					r.ledger[o] = FREE;
					r.pending--;
#ifndef NO_TOMBSTONE
					r.result[o] = TOMBSTONE;
#endif
					if
					:: r.buyer[USER(o)] == o -> r.buyer[USER(o)] = NOBODY
					:: else
					fi;
					answer = 0
				fi
			fi
		fi
	}
}

#ifdef NO_VERSION_GATE
#define newer(v) true
#else
#define newer(v) (v > r.version)
#endif

/* What MySQL decided. Inside of a d_step. worker: it is not the binlog or the sweep that says so. */
inline settle(o, alive, v, s, worker)
{
	if
	:: r.state != OPEN ->
#ifdef SETTLE_DURING_LOAD
		r.ledger[o] = FREE
#endif
		skip
	:: else ->
		if
		:: r.ledger[o] != FREE ->
			r.ledger[o] = FREE;
			r.pending--;
#ifdef COUNT_DOWN
			if
			:: alive && r.stock > 0 -> r.stock--
			:: else
			fi
#endif
		:: else
		fi;
		if
		:: !alive && r.buyer[USER(o)] == o -> r.buyer[USER(o)] = NOBODY
		:: else
		fi;
		r.result[o] = DECIDED;
		if
#ifdef COUNT_DOWN
		:: !worker && newer(v) -> r.stock = s; r.version = v
#else
#ifdef TWO_STEPS
		:: !worker && newer(v) -> r.stock = s; r.version = v
#else
		:: newer(v) -> r.stock = s; r.version = v
#endif
#endif
		:: else
		fi
	fi
}

/* ---- The processes ---- */

/* Inside of an atomic. */
inline give_back(o)
{
	release(o, answer);
	if
	:: answer == 0 -> told[o] = REFUSED
#ifdef RELEASE_UNKNOWN
	:: answer == 2 -> told[o] = REFUSED
	:: answer == 1 -> told[o] = PROCESSING
#else
	:: else -> told[o] = PROCESSING
#endif
	fi;
	answer = 0
}

proctype Gateway(byte o)
{
	byte answer;
	bool repeated;

	atomic {
		begun[o] = true;
		if
		:: copies > 0 -> copies--; stuck[o] = true; repeated = true
		:: repeated = false
		fi
	}
	atomic {
		if
		:: expired[o] -> answer = 1
		:: else -> reserve(o, answer)
		fi;
		if
		:: answer == 0 -> publishing[o] = !old[o]; told[o] = PROCESSING
#ifdef NO_FENCE
		:: answer == 1 -> told[o] = REFUSED; goto done
#else
		:: answer == 1 && !repeated -> told[o] = REFUSED; goto done
		:: answer == 1 && repeated -> goto fence
#endif
		:: answer == 2 -> told[o] = PROCESSING; goto done /* its own copy was there first: the sweep decides */
		fi
	}
	if
	:: atomic { publishing[o] && tail < RECORDS ->
		record[tail] = o + 1; tail++; publishing[o] = false;
		if
		:: told[o] = QUEUED
		:: true /* nobody hears it */
		fi
	   }
	:: publishing[o] = false /* it dies, or does not know */
	:: publishing[o] = false; /* provably not sent */
#ifndef NO_FENCE
fence:
#endif
	   atomic { give_back(o) }
	fi;
done:	skip
}

proctype Worker()
{
	byte at, o, v, s;

	do
	:: atomic {
		marked < tail ->
		at = marked; o = record[at] - 1;
#ifdef MARK_FIRST
		marked = at + 1
	   }
	   atomic {
		if
		:: crashes > 0 -> crashes--; goto again
		:: true
		fi;
#endif
		if
		:: row[o] == NONE ->
			if
#ifdef NO_GUARD
			:: true ->
#else
#ifdef NO_UNIQUE
			:: stock > 0 ->
#else
			:: stock > 0 && !(USER(0) == USER(1) && row[1 - o] == LIVE) ->
#endif
#endif
				row[o] = LIVE; stock--; version++
			:: else -> row[o] = DEAD
			fi;
			ev_order[events] = o; ev_version[events] = version; ev_stock[events] = stock;
			events++
		:: else
		fi;
		v = version; s = stock
	   }
	   if
	   :: d_step { settle(o, (row[o] == LIVE), v, s, true); o = 0; v = 0; s = 0 }
	      d_step {
		if
		:: marked <= at -> marked = at + 1
		:: else
		fi;
		at = 0
	      }
	   :: atomic { crashes > 0 -> crashes--; /* it meets the record again */
again:		at = 0; o = 0; v = 0; s = 0 }
	   fi
	od
}

proctype Binlog()
{
	byte at;
	do
	:: atomic { position < events -> at = position }
	   d_step { settle(ev_order[at], (row[ev_order[at]] == LIVE), ev_version[at], ev_stock[at], false) }
	   d_step {
		if
		:: position == at -> position = at + 1
		:: else /* a load sent it back */
		fi;
		at = 0
	   }
	od
}

/* The sweep, of one order. */
proctype Sweep(byte o)
{
	byte mark, at_epoch;
	do
	:: d_step { selling && r.ledger[o] != FREE && row[o] != NONE -> settle(o, (row[o] == LIVE), version, stock, false) }
#ifdef SWEEP_AT_ONCE
	:: atomic { selling && r.ledger[o] != FREE && row[o] == NONE && tail < RECORDS - 1 -> at_epoch = r.epoch }
#else
	:: atomic { old[o] && selling && r.ledger[o] != FREE && row[o] == NONE -> mark = tail }
	   atomic { marked >= mark; /* everything below has landed */ at_epoch = r.epoch; mark = 0 }
#endif
	   atomic {
		if
		:: selling && r.ledger[o] != FREE && row[o] == NONE
		:: else -> goto next
		fi
	   }
	   atomic { /* once more, before it publishes: the server and the load are the same */
		if
		:: selling && r.epoch == at_epoch && tail < RECORDS -> record[tail] = o + 1; tail++
		:: else
		fi;
next:		at_epoch = 0
	   }
	od
}

#ifdef NO_EPOCH
#define fenced(e) (r.state != RECOVERING)
#else
#define fenced(e) (r.state != RECOVERING || r.epoch != e || !r.same)
#endif

proctype Loader()
{
	byte e, i, pin, v, s;
	bool open[ORDERS], here;
	mtype:row rows[ORDERS];

	do
#if SYNCERS > 1
	:: atomic { !selling && (!loading || takeovers > 0) ->
		if
		:: loading -> takeovers--
		:: else -> loading = true
		fi;
#else
	:: atomic { !selling ->
#endif
		pin = position;
		r.doubtful = (r.state != EMPTY && (r.doubtful || !r.same));
		epochs++; e = epochs; r.epoch = e; r.state = RECOVERING; r.same = true;
		for (i : 0 .. ORDERS - 1) { r.buyer[i] = NOBODY; open[i] = begun[i] }
	   }
	   /* It waits until what had begun before has ended. */
	   d_step {
		for (i : 0 .. ORDERS - 1) {
			if
			:: open[i] ->
#ifndef NO_OUTWAIT_CALLS
				expired[i] = true;
#endif
#ifndef NO_OUTWAIT_PUBLISH
				expired[i] = true; old[i] = true; publishing[i] = false
#endif
				open[i] = false
			:: else
			fi
		}
	   }
#ifdef SNAPSHOT_FIRST
	   d_step { v = version; s = stock; for (i : 0 .. ORDERS - 1) { rows[i] = row[i] } }
#endif
	   d_step { for (i : marked .. RECORDS - 1) {
		if
		:: i < tail -> open[record[i] - 1] = true
		:: else
		fi
	   } }
#ifndef SNAPSHOT_FIRST
	   d_step { v = version; s = stock; for (i : 0 .. ORDERS - 1) { rows[i] = row[i] } }
#endif
	   d_step {
		if
		:: fenced(e)
		:: else -> for (i : 0 .. ORDERS - 1) {
			if
			:: rows[i] != NONE ->
				r.ledger[i] = FREE; r.result[i] = DECIDED;
				if
				:: rows[i] == LIVE -> r.buyer[USER(i)] = i
				:: else
				fi
			:: else
			fi
		}
		fi
	   }
	   d_step {
		if
		:: fenced(e)
		:: else -> for (i : 0 .. ORDERS - 1) {
			if
			:: rows[i] != NONE
			:: else ->
				if
#ifdef KEEP_DOUBTFUL
				:: open[i] || r.ledger[i] != FREE ->
#else
				:: open[i] || (r.ledger[i] != FREE && !r.doubtful) ->
#endif
					r.ledger[i] = KEPT;
					if
					:: r.buyer[USER(i)] == NOBODY -> r.buyer[USER(i)] = i
					:: else
					fi
				:: else ->
					if
					:: r.ledger[i] != FREE -> r.result[i] = TOMBSTONE
					:: else
					fi;
					r.ledger[i] = FREE
				fi
			fi
			}
			r.pending = 0;
			for (i : 0 .. ORDERS - 1) {
				if
				:: r.ledger[i] != FREE -> r.pending++
				:: else
				fi
			}
			r.stock = s; r.version = v; r.state = OPEN; r.doubtful = false;
#ifndef NO_WAY_BACK
			if
			:: pin < position -> position = pin
			:: else
			fi
#endif
		fi;
		loading = false;
		e = 0; pin = 0; v = 0; s = 0; i = 0; here = false;
		for (i : 0 .. ORDERS - 1) { rows[i] = NONE; open[i] = false }
		i = 0
	   }
	od
}

inline copy_redis(from, to)
{
	to.state = from.state; to.doubtful = from.doubtful; to.epoch = from.epoch; to.stock = from.stock;
	to.version = from.version; to.pending = from.pending;
	for (k : 0 .. ORDERS - 1) {
		to.ledger[k] = from.ledger[k]; to.buyer[k] = from.buyer[k]; to.result[k] = from.result[k]
	}
	k = 0
}

inline forget(x)
{
	x.state = EMPTY; x.same = false; x.doubtful = false; x.epoch = 0; x.stock = 0; x.version = 0; x.pending = 0;
	for (k : 0 .. ORDERS - 1) { x.ledger[k] = FREE; x.buyer[k] = NOBODY; x.result[k] = NORESULT }
	k = 0
}

/* Copies that were stuck arrive. */
proctype Network(byte o)
{
	byte answer;
	atomic {
		stuck[o];
		if
		:: reserve(o, answer)
		:: true /* it got lost */
		fi;
		stuck[o] = false; answer = 0
	}
}

/* Time passes for an order: the deadline of its call, and its publish budget, which is longer. */
proctype Time(byte o)
{
	atomic { begun[o]; expired[o] = true }
	atomic { old[o] = true; publishing[o] = false }
}

/* Redis is replaced by a replica that misses the last writes, or loses everything. */
proctype Faults()
{
	byte k;
	do
	:: d_step { faults > 0 && !copied && r.state != EMPTY -> copy_redis(r, replica); copied = true }
	:: d_step { faults > 0 && copied -> copy_redis(replica, r); r.same = false; faults--; forget(replica); copied = false }
	:: d_step { faults > 0 -> forget(r); faults--; forget(replica); copied = false }
#ifdef RESET_PENDING
	:: d_step { selling -> r.pending = 0; for (k : 0 .. ORDERS - 1) { r.ledger[k] = FREE } k = 0 }
#endif
	:: faults == 0 -> break
	od
}

/* ---- What must hold ---- */

#define lives ((row[0] == LIVE) + (row[1] == LIVE))
#define may_land(o) (row[o] == NONE && (publishing[o] || record[0] == o + 1 || record[1] == o + 1 || record[2] == o + 1 || \
	record[3] == o + 1 || record[4] == o + 1))
#define promised (may_land(0) + may_land(1))
#define ledger_sum ((r.ledger[0] != FREE) + (r.ledger[1] != FREE))

#define I1 (lives + stock == STOCK)
#define I3 (!(USER(0) == USER(1) && lives == 2))
#define I5 (!selling || (r.pending == ledger_sum && (r.stock <= r.pending || r.stock - r.pending + promised <= stock)))
#define I4(o) (told[o] != REFUSED || row[o] == NONE)
#define FITS (tail < RECORDS)

active proctype Monitor()
{
end:	atomic { !(I1 && I3 && I5 && I4(0) && I4(1) && FITS) ->
		assert(I1); assert(I3); assert(I5); assert(I4(0) && I4(1)); assert(FITS) }
}

#define kept(o) (told[o] != QUEUED || row[o] != NONE)
#define quiet (selling && r.stock == stock && r.pending == 0 && ledger_sum == 0 && kept(0) && kept(1))
#ifdef CONVERGENCE
ltl converges { <> [] quiet }
#endif

init
{
	byte i;
	atomic {
		r.state = OPEN; r.same = true; r.epoch = 1; r.stock = STOCK; r.version = 1;
		for (i : 0 .. ORDERS - 1) {
			r.buyer[i] = NOBODY; replica.buyer[i] = NOBODY;
			r.ledger[i] = FREE; replica.ledger[i] = FREE; r.result[i] = NORESULT; replica.result[i] = NORESULT;
			row[i] = NONE; told[i] = NOTHING
		}
		replica.state = EMPTY;
		for (i : 0 .. ORDERS - 1) { run Gateway(i); run Network(i); run Time(i); run Sweep(i) }
		for (i : 1 .. WORKERS) { run Worker() }
		for (i : 1 .. SYNCERS) { run Binlog(); run Loader() }
		run Faults();
		i = 0
	}
}
