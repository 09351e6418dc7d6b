/*
 * The reservation protocol of docs/protocol.md, small enough to be searched whole by SPIN: see docs/model.md, which explains it to
 * readers who know no Promela, and model/check.sh, which runs it. Each script of Redis and each transaction of MySQL is one
 * indivisible step (d_step); everything else may come in between any two steps.
 *
 * Sizes, given by -D: CALLS of the two orders are asked for, of STOCK units, with WORKERS workers and SYNCERS syncers; ONEUSER: both
 * are of one buyer. Each of what follows happens at most so often: LOSSES of all that Redis has, FAILOVERS to a replica that misses
 * its last writes, CRASHES of a worker or of a syncer at the binlog, COPIES of a reserve call that are stuck, CANCELS of an order in
 * MySQL by the shop, TAKEOVERS of a load by another syncer.
 *
 * A rule is left out by -D and its name: those are the words in capitals behind #ifdef and #ifndef below. The lines that are
 * printed are what a run that breaks reads like.
 */
#define ORDERS 2
#ifndef CALLS
#define CALLS 2
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
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef FAILOVERS
#define FAILOVERS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef COPIES
#define COPIES 0
#endif
#ifndef CANCELS
#define CANCELS 0
#endif
#ifndef TAKEOVERS
#define TAKEOVERS (SYNCERS - 1)
#endif
#define RECORDS 5 /* that Kafka can hold; FITS shows that it suffices */
#define EVENTS (ORDERS + CANCELS)
#define NOBODY 7

#ifdef ONEUSER
#define USER(o) 0
#else
#define USER(o) (o)
#endif

/* ---- MySQL ---- */
mtype:row = { NONE, LIVE, DEAD };
byte stock = STOCK;
byte version = 1;
mtype:row row[ORDERS] = NONE;
bool cancelled[ORDERS]; /* by the shop, after it had landed */
byte events = 0;        /* of the binlog: one for each order that has landed, or was cancelled */
byte ev_order[EVENTS], ev_version[EVENTS], ev_stock[EVENTS];
bool ev_alive[EVENTS];

/* ---- Kafka ---- */
byte record[RECORDS]; /* order + 1, so that what is not written yet is 0 */
byte tail = 0;
byte marked = 0; /* the workers' offset */

/* ---- Redis ---- */
mtype:state = { EMPTY, RECOVERING, OPEN };
mtype:entry = { FREE, OWN, KEPT }; /* KEPT: put back by a load, so nobody can release it */
mtype:result = { NORESULT, TOMBSTONE, LIVED, DIED };
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
bool copied; /* replica is what one would have that misses every write from here on */

/* ---- What is under way ---- */
mtype:told = { NOTHING, PROCESSING, QUEUED, REFUSED };
mtype:told told[ORDERS] = NOTHING;
bool begun[ORDERS];      /* its reserve call has been made */
bool publishing[ORDERS]; /* its gateway may still publish it */
bool stuck[ORDERS];      /* a copy of its reserve call is still on its way */
bool expired[ORDERS];    /* past the deadline of its reserve call */
bool old[ORDERS];        /* past its publish budget */
byte again[ORDERS];      /* so many sweeps are about to publish it again */
byte position = 0;       /* in the binlog */
bool applying[SYNCERS];  /* and the next one is being applied */
byte epochs = 1;
byte loads = 0; /* under way */
byte losses = LOSSES, failovers = FAILOVERS, crashes = CRASHES, copies = COPIES, cancels = CANCELS, takeovers = TAKEOVERS;

/* ---- The scripts ---- */

#define ledger_sum ((r.ledger[0] != FREE) + (r.ledger[1] != FREE))
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

#ifdef NO_DEADLINE
#define in_time(o) true
#else
#define in_time(o) (!expired[o])
#endif
#ifdef NO_BUYERS
#define buyer_free(o) true
#else
#define buyer_free(o) (r.buyer[USER(o)] == NOBODY)
#endif
#ifdef NO_PENDING
#define available (r.stock > 0)
#else
#define available (r.stock > r.pending)
#endif

/* answer: 0 reserved, 1 refused, 2 it was there before or is decided */
inline reserve(o, answer)
{
	d_step {
		if
		:: r.ledger[o] != FREE || r.result[o] != NORESULT -> answer = 2
		:: else ->
			if
			:: may_reserve && in_time(o) && buyer_free(o) && available ->
				r.ledger[o] = OWN;
				r.pending++;
				r.buyer[USER(o)] = o;
				answer = 0
			:: else -> answer = 1
			fi
		fi;
		printf("reserve of order %d: %d (0 reserved, 1 refused, 2 known)\n", o, answer)
	}
}

#ifdef NO_RELEASE_AGE
#define too_old(o) false
#else
#define too_old(o) (old[o])
#endif

/* answer: 0 released, 1 kept or decided, 2 none */
inline release(o, answer)
{
	d_step {
		if
		:: !may_release -> answer = 2
		:: else ->
			if
			:: r.result[o] == LIVED || r.result[o] == DIED || r.ledger[o] == KEPT -> answer = 1
			:: r.ledger[o] == OWN && too_old(o) -> answer = 1
			:: else ->
				if
				:: r.ledger[o] != FREE ->
					r.ledger[o] = FREE;
					r.pending--;
					if
					:: r.buyer[USER(o)] == o -> r.buyer[USER(o)] = NOBODY
					:: else
					fi
				:: else
				fi;
#ifndef NO_TOMBSTONE
				r.result[o] = TOMBSTONE;
#endif
				answer = 0
			fi
		fi;
		printf("release of order %d: %d (0 released, 1 kept, 2 no answer)\n", o, answer)
	}
}

#ifdef NO_VERSION_GATE
#define newer(v) true
#else
#define newer(v) (v > r.version)
#endif

#ifdef FREE_BY_USER
#define holds(o) true
#else
#define holds(o) (r.buyer[USER(o)] == o)
#endif

/* What MySQL decided, inside of a d_step. worker: neither the binlog nor the sweep says so. over: over a result that is final */
inline settle(o, alive, v, s, worker, over)
{
	if
#ifdef SETTLE_DURING_LOAD
	:: r.state == EMPTY
	:: r.state == RECOVERING -> r.ledger[o] = FREE
#else
	:: r.state != OPEN
#endif
	:: else ->
		if
		:: r.ledger[o] != FREE ->
#ifdef KEEP_PENDING
			skip
#else
			r.ledger[o] = FREE;
			r.pending--;
#endif
		:: else
		fi;
		if
		:: !(alive) && holds(o) -> r.buyer[USER(o)] = NOBODY
		:: else
		fi;
		if
		:: over || (r.result[o] != LIVED && r.result[o] != DIED) ->
			if
			:: alive -> r.result[o] = LIVED
			:: else -> r.result[o] = DIED
			fi
		:: else
		fi;
		if
#ifdef COUNT_DOWN
		:: worker && alive && r.stock > 0 -> r.stock--
#endif
#if defined(TWO_STEPS) || defined(COUNT_DOWN)
		:: !worker && newer(v) -> r.stock = s; r.version = v
#else
		:: newer(v) -> r.stock = s; r.version = v
#endif
		:: else
		fi
	fi
}
#ifdef WORKER_OVERWRITES
#define WORKER_OVER true
#else
#define WORKER_OVER false
#endif
#ifdef SWEEP_OVERWRITES
#define SWEEP_OVER true
#else
#define SWEEP_OVER false
#endif
#ifdef BINLOG_KEEPS
#define BINLOG_OVER false
#else
#define BINLOG_OVER true
#endif

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
#ifndef ONEUSER
		/* The orders differ by nothing but their number, so it is no loss that the first is asked for first. */
		o == 0 || begun[0];
#endif
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
		fi;
		printf("the gateway publishes order %d (queued: %d)\n", o, told[o] == QUEUED)
	   }
	:: d_step { publishing[o] = false; printf("the gateway dies with order %d\n", o) } /* or does not know */
	:: publishing[o] = false; /* provably not sent */
#ifndef NO_FENCE
fence:
#endif
	   atomic { give_back(o) }
	fi;
done:	skip
}

#ifdef NO_GUARD
#define in_stock true
#else
#define in_stock (stock > 0)
#endif
#ifdef NO_UNIQUE
#define alone(o) true
#else
#define alone(o) !(USER(0) == USER(1) && row[1 - o] == LIVE)
#endif

/* Of the binlog. Inside of an atomic. */
inline event(o, alive)
{
	ev_order[events] = o; ev_alive[events] = alive; ev_version[events] = version; ev_stock[events] = stock;
	events++
}

proctype Worker()
{
	byte at, o, v, s;
	bool alive;

	do
	:: atomic {
		marked < tail ->
		at = marked; o = record[at] - 1;
#ifdef MARK_FIRST
		marked = at + 1
	   }
	   atomic {
		if
		:: crashes > 0 -> crashes--; printf("a worker dies after it marked order %d\n", o); goto redo
		:: true
		fi;
#endif
		if
		:: row[o] == NONE ->
			if
			:: in_stock && alone(o) -> row[o] = LIVE; stock--; version++
			:: else -> row[o] = DEAD
			fi;
			event(o, row[o] == LIVE)
		:: else
		fi;
#ifdef MARK_BEFORE_SETTLE
		marked = (marked <= at -> at + 1 : marked);
#endif
		alive = (row[o] == LIVE); v = version; s = stock;
		printf("a worker lands order %d (live: %d)\n", o, alive)
	   }
	   if
	   :: d_step {
#ifndef NO_WORKER_SETTLE
		settle(o, alive, v, s, true, WORKER_OVER);
#endif
		printf("the worker settles order %d\n", o);
		o = 0; v = 0; s = 0; alive = false
	      }
	      d_step {
		if
		:: marked <= at -> marked = at + 1
		:: else
		fi;
		at = 0
	      }
	   :: atomic { crashes > 0 -> crashes--; /* it meets the record again */
		printf("the worker dies with order %d\n", o);
redo:		at = 0; o = 0; v = 0; s = 0; alive = false }
	   fi
	od
}

proctype Binlog(byte me)
{
	byte at;
	do
	:: atomic { position < events -> at = position; applying[me] = true;
#ifdef POSITION_FIRST
		position = at + 1
#endif
	   }
	   if
	   :: d_step {
		settle(ev_order[at], ev_alive[at], ev_version[at], ev_stock[at], false, BINLOG_OVER);
		printf("the binlog settles order %d (live: %d)\n", ev_order[at], ev_alive[at])
	      }
	      d_step {
		if
		:: applying[me] && position == at -> position = at + 1
		:: else /* a load has sent it back meanwhile */
		fi;
		applying[me] = false; at = 0
	      }
	   :: d_step { crashes > 0 -> crashes--; applying[me] = false; at = 0; printf("the syncer dies\n") }
	   fi
	od
}

/* The sweep, of one order: what has a row is settled, and what provably was never published is published. */
proctype Sweep(byte o)
{
	byte mark, at_epoch, v, s;
	bool alive;
	do
	:: atomic { selling && r.ledger[o] != FREE && row[o] != NONE -> alive = (row[o] == LIVE); v = version; s = stock }
	   d_step {
		settle(o, alive, v, s, false, (SWEEP_OVER || !alive));
		printf("the sweep settles order %d (live: %d)\n", o, alive);
		alive = false; v = 0; s = 0
	   }
#ifdef SWEEP_AT_ONCE
	:: atomic { selling && r.ledger[o] != FREE && row[o] == NONE && tail < RECORDS - 1 -> at_epoch = r.epoch }
#else
	:: atomic { old[o] && selling && r.ledger[o] != FREE && row[o] == NONE -> mark = tail }
	   atomic { marked >= mark; mark = 0; /* everything below has landed; the ledger is read, and then the rows */
		if
		:: selling && r.ledger[o] != FREE && row[o] == NONE -> at_epoch = r.epoch
		:: else -> goto next
		fi
	   }
#endif
	   atomic { /* right before it publishes it looks whether it is still the same server, and the same load */
		if
#ifdef NO_SAME_LOAD
		:: true -> again[o]++
#else
		:: selling && r.epoch == at_epoch -> again[o]++
#endif
		:: else -> goto next
		fi
	   }
	   atomic { /* unless that is so long ago that a load may have outwaited it */
		if
		:: again[o] > 0 && tail < RECORDS -> again[o]--; record[tail] = o + 1; tail++;
			printf("the sweep publishes order %d\n", o)
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

/* Rebuilds Redis. A load that is fenced ends there. */
proctype Loader()
{
	byte e, i, pin, v, s;
	bool open[ORDERS];
	mtype:row rows[ORDERS];

	do
	:: atomic { !selling && (loads == 0 || takeovers > 0) ->
		if
		:: loads > 0 -> takeovers--
		:: else
		fi;
		loads++;
		pin = position;
		r.doubtful = (r.state != EMPTY && (r.doubtful || !r.same));
		epochs++; e = epochs; r.epoch = e; r.state = RECOVERING; r.same = true;
		for (i : 0 .. ORDERS - 1) { r.buyer[i] = NOBODY; open[i] = begun[i] }
		i = 0;
		printf("a load begins\n")
	   }
	   atomic { /* It waits until what had begun before has ended. */
		if
		:: fenced(e) -> goto over
		:: else
		fi;
		d_step {
			for (i : 0 .. ORDERS - 1) {
				if
				:: open[i] ->
#ifndef NO_OUTWAIT_CALLS
					expired[i] = true;
#ifndef NO_OUTWAIT_PUBLISH
					old[i] = true; publishing[i] = false; again[i] = 0;
#endif
#endif
					open[i] = false
				:: else
				fi
			}
			i = 0
		}
	   }
#ifdef SNAPSHOT_FIRST
	   d_step { v = version; s = stock; for (i : 0 .. ORDERS - 1) { rows[i] = row[i] } i = 0 }
#endif
#ifndef FORGET_RECORDS
	   atomic { /* the records that have not landed */
		if
		:: fenced(e) -> goto over
		:: else
		fi;
		d_step {
			for (i : marked .. RECORDS - 1) {
				if
				:: i < tail -> open[record[i] - 1] = true
				:: else
				fi
			}
			i = 0
		}
	   }
#endif
#ifndef SNAPSHOT_FIRST
	   atomic { /* one snapshot of MySQL */
		if
		:: fenced(e) -> goto over
		:: else
		fi;
		d_step {
			v = version; s = stock;
			for (i : 0 .. ORDERS - 1) { rows[i] = row[i] }
			i = 0
		}
	   }
#endif
	   atomic { /* its rows */
		if
		:: fenced(e) -> goto over
		:: else
		fi;
		d_step {
			for (i : 0 .. ORDERS - 1) {
				if
				:: rows[i] != NONE ->
					r.ledger[i] = FREE;
					if
					:: rows[i] == LIVE ->
						r.result[i] = LIVED;
#ifndef FORGET_BUYERS
						r.buyer[USER(i)] = i
#endif
					:: else -> r.result[i] = DIED
					fi
				:: else
				fi
			}
			i = 0
		}
	   }
	   atomic { /* the reservations that have no row, and the end */
		if
		:: fenced(e) -> goto over
		:: else
		fi;
		d_step {
			for (i : 0 .. ORDERS - 1) {
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
			r.pending = ledger_sum; r.stock = s; r.version = v; r.state = OPEN; r.doubtful = false;
#ifndef NO_WAY_BACK
			if
			:: pin < position -> position = pin
			:: else
			fi;
#ifndef NO_APPLYING
			for (i : 0 .. SYNCERS - 1) { applying[i] = false } /* what it is at comes again */
			i = 0
#endif
#endif
		};
over:		loads--;
		d_step {
			e = 0; pin = 0; v = 0; s = 0;
			for (i : 0 .. ORDERS - 1) { rows[i] = NONE; open[i] = false }
			i = 0;
			printf("a load ends (Redis: stock %d, pending %d)\n", r.stock, r.pending)
		}
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

inline cancel(o)
{
	row[o] = DEAD; cancelled[o] = true; stock++; version++; cancels--;
	event(o, false);
	printf("the shop cancels order %d\n", o)
}

/* Whatever nobody does on purpose. All of it is finite. */
proctype World()
{
	byte k, answer;
	do
	/* Time passes: the deadline of an order's reserve call, and its publish budget, which is longer. */
	:: d_step { begun[0] && !expired[0] -> expired[0] = true; printf("the deadline of order 0 passes\n") }
	:: d_step { begun[1] && !expired[1] -> expired[1] = true; printf("the deadline of order 1 passes\n") }
	:: d_step { expired[0] && !old[0] -> old[0] = true; publishing[0] = false; printf("order 0 is old\n") }
	:: d_step { expired[1] && !old[1] -> old[1] = true; publishing[1] = false; printf("order 1 is old\n") }
	/* A copy that was stuck arrives, or got lost. */
	:: atomic { stuck[0] -> stuck[0] = false; reserve(0, answer); answer = 0 }
	:: atomic { stuck[1] -> stuck[1] = false; reserve(1, answer); answer = 0 }
	:: stuck[0] -> stuck[0] = false
	:: stuck[1] -> stuck[1] = false
	/* The shop cancels an order. */
	:: atomic { cancels > 0 && row[0] == LIVE -> cancel(0) }
	:: atomic { cancels > 0 && row[1] == LIVE -> cancel(1) }
	/* Redis loses everything, or is replaced by a replica that misses the last writes. Or it keeps well from here on. */
	:: d_step { failovers > 0 && !copied && r.state != EMPTY -> copy_redis(r, replica); copied = true }
	:: d_step { failovers > 0 && copied -> copy_redis(replica, r); r.same = false; failovers--; forget(replica); copied = false;
		printf("a replica takes over\n") }
	:: d_step { losses > 0 -> forget(r); losses--; forget(replica); copied = false; printf("Redis loses everything\n") }
	:: d_step { losses + failovers > 0 -> losses = 0; failovers = 0; forget(replica); copied = false }
#ifdef RESET_PENDING
	:: d_step { selling && ledger_sum > 0 -> r.pending = 0; for (k : 0 .. ORDERS - 1) { r.ledger[k] = FREE } k = 0;
		printf("pending is reset\n") }
#endif
	od
}

/* ---- What must hold ---- */

#define lives ((row[0] == LIVE) + (row[1] == LIVE))
#define may_land(o) (row[o] == NONE && (publishing[o] || again[o] > 0 || record[0] == o + 1 || record[1] == o + 1 || \
	record[2] == o + 1 || record[3] == o + 1 || record[4] == o + 1))
#define promised (may_land(0) + may_land(1))
/* every landing takes a unit and every cancel gives one, and each makes a version: so version and stock are odd or even together,
   and without a cancel their sum never changes */
#define had (r.stock <= STOCK && (CANCELS > 0 || r.stock + r.version == STOCK + 1) && (r.stock + r.version - STOCK - 1) % 2 == 0)
#define owned(o) (row[o] != LIVE || r.buyer[USER(o)] == o)

#define I1 (lives + stock == STOCK)
#define I2 (!selling || had)
#define I3 (!(USER(0) == USER(1) && lives == 2) && (!selling || (owned(0) && owned(1))))
#define I4(o) ((told[o] != REFUSED || row[o] == NONE) && (told[o] != QUEUED || row[o] != DEAD || cancelled[o]))
#define I5 (!selling || (r.pending == ledger_sum && (r.stock <= r.pending || r.stock - r.pending + promised <= stock)))
#define FITS (tail < RECORDS)

#ifndef CONVERGENCE
active proctype Monitor()
{
end:	atomic {
		if
		:: !I1 -> printf("I1 is broken\n")
		:: !I2 -> printf("I2 is broken\n")
		:: !I3 -> printf("I3 is broken\n")
		:: !(I4(0) && I4(1)) -> printf("I4 is broken\n")
		:: !I5 -> printf("I5 is broken\n")
		:: !FITS -> printf("Kafka is too small\n")
		fi;
		assert(false)
	}
}
#endif

/* At rest Redis has MySQL's stock and nothing pending, who was told queued has a row, nobody is locked out, and buyers are told what is so. */
#define kept(o) (told[o] != QUEUED || row[o] != NONE)
#define free(o) (r.buyer[USER(o)] != o || row[o] == LIVE)
#define true_of(o) ((r.result[o] != LIVED || row[o] == LIVE) && (r.result[o] != DIED || row[o] == DEAD))
#define right(o) (kept(o) && free(o) && true_of(o))
#define quiet (selling && r.stock == stock && r.version == version && r.pending == 0 && ledger_sum == 0 && right(0) && right(1))
#ifdef CONVERGENCE
ltl converges { <> [] quiet }
/* Under weak fairness SPIN sees no run that ends, only cycles: so the clock goes on ticking when nobody has anything to do. */
active proctype Clock()
{
	do
	:: tail <= RECORDS /* always */
	od
}
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
		for (i : 1 .. CALLS) { run Gateway(i - 1) }
		for (i : 1 .. WORKERS) { run Worker() }
		for (i : 1 .. SYNCERS) {
#ifndef BINLOG_OFF
			run Binlog(i - 1);
#endif
#ifndef SWEEP_OFF
			run Sweep(0);
#if CALLS > 1
			run Sweep(1);
#endif
#endif
#ifndef LOAD_OFF
			run Loader();
#endif
		}
		run World();
		i = 0
	}
}
