#!/usr/bin/env bash
# Checks the reservation protocol by its models; docs/model.md explains them.
#
#   model/check.sh          all of it, as in CI
#   model/check.sh walk     a million random steps (MODEL_STEPS) over the real scripts on a real Redis, and whether each
#                           rule that is left out on purpose is found
#   model/check.sh spin     the formal model model/seckill.pml, searched whole in bounded sizes, and whether SPIN finds
#                           the rules that are left out of it
#   model/check.sh beyond   the formal model with two workers, two syncers, a loss and a fail-over, as far as bitstate hashing reaches in
#                           BEYOND seconds (600)
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

walk() {
	"$root/scripts/install.sh" redis
	cd "$root"
	say "model: ${MODEL_STEPS:=1000000} random steps over the real scripts, and each rule left out"
	export MODEL_STEPS
	go test -count=1 -timeout 20m -run '^TestModel' ./internal/ledger
}

work=
trap 'rm -rf "$work"' EXIT

safe="-DCOLLAPSE -DSAFETY"
fair="-DCOLLAPSE -DNFAIR=4"

# verifier NAME "FLAGS OF GCC" MACRO…: builds the verifier of the model with these macros in $work/NAME, and goes there.
verifier() {
	mkdir -p "$work/$1"
	cd "$work/$1"
	printf '%s\n' "${@:3}" >macros
	# shellcheck disable=SC2086 # several flags
	{ spin -a "${@:3}" "$root/model/seckill.pml" && gcc -w -DVECTORSZ=2048 $2 -o pan pan.c; } >log 2>&1 || {
		tail_log "$work/$1/log"
		fail "the verifier of $1 cannot be built"
	}
}

# look "FLAGS OF PAN": runs the verifier that was built last. 0: searched whole, and nothing breaks; 1: it breaks; 2: neither.
look() {
	# shellcheck disable=SC2086
	./pan -E $1 >log 2>&1 || true
	! grep -q 'errors: [1-9]' log || return 1
	grep -q 'errors: 0$' log && ! grep -qE 'Search not completed|max search depth too small|out of memory' log || return 2
}

# trail: the run that breaks, in words.
trail() {
	local macros
	mapfile -t macros <macros
	spin -k seckill.pml.trail "${macros[@]}" "$root/model/seckill.pml" |
		sed -n '/final state:\|^spin: trail ends\|#processes/,$d;/^ltl\|Never\|^\t\t\|text of failed\|assertion violated/d;s/^ */    /p' || true
}

# search NAME "FLAGS OF GCC" "FLAGS OF PAN" MACRO…: prints what was searched, and fails with the run when something breaks.
search() {
	local found=0
	verifier "$1" "-O2 $2" "${@:4}"
	look "$3" || found=$?
	if [[ $found != 0 ]]; then
		[[ $found != 1 ]] || trail
		tail_log "$work/$1/log" 60
		fail "$1: the model breaks, or was not searched whole"
	fi
	say "  $1: $(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' log | head -1) states, depth $(sed -n 's/.*depth reached \([0-9]*\),.*/\1/p' log)," \
		"$(sed -n 's/^ *\([0-9.]*\).*total actual memory usage/\1/p' log) MB, ${*:4}"
	rm -rf "${work:?}/$1"
}
safety() { search "$1" "$safe" -m100000 "${@:2}"; }
converges() { search "$1" "$fair" "-a -f -m1000000" -DCONVERGENCE "${@:2}"; }

# without RULE "FLAGS OF GCC" "FLAGS OF PAN" MACRO…: the model without a rule must break. TRAILS=1 prints how.
without() {
	local found=0
	verifier "$1" "-O0 $2" "-D$1" "${@:4}"
	look "$3" || found=$?
	[[ $found == 1 ]] || fail "without $1 the model does not break: see docs/model.md"
	trail >words
	if grep -q 'START OF CYCLE' words; then
		say "  $1: Redis never comes to rest"
	else
		say "  $1: $(tail -n 1 words | sed 's/^ *//')"
	fi
	[[ -z ${TRAILS:-} ]] || cat words
	rm -rf "${work:?}/$1"
}
# Two rules are tried at a time, since most of it is compiling; settle waits for the last ones.
try() {
	[[ ${#tries[@]} -lt 2 ]] || settle 1
	"$@" &
	tries+=($!)
}
# settle N: waits until the first N of them are through, and fails if one of these was not noticed.
settle() {
	local pid
	for pid in "${tries[@]:0:$1}"; do
		wait "$pid" || fail "a rule that is left out is not noticed"
	done
	tries=("${tries[@]:$1}")
}
tries=()
# Breadth first, so the run that is found is the shortest.
breaks() { try without "$1" "$safe -DBFS" -m100000 -DWORKERS=1 "${@:2}"; }
stalls() { try without "$1" "$fair" "-a -f -m1000000" -DCONVERGENCE -DWORKERS=1 "${@:2}"; }

formal() {
	"$root/scripts/install.sh" spin
	work=$(mktemp -d)
	say "model: SPIN, safety"
	safety two-workers -DWORKERS=2 -DCRASHES=1 -DCOPIES=1
	safety two-workers-and-a-loss -DWORKERS=2 -DLOSSES=1
	safety two-workers-and-a-fail-over -DWORKERS=2 -DFAILOVERS=1
	safety one-buyer-and-a-cancel -DWORKERS=1 -DONEUSER -DSTOCK=2 -DCANCELS=1 -DCRASHES=1
	safety two-syncers-and-a-loss -DWORKERS=1 -DSYNCERS=2 -DLOSSES=1 -DCALLS=1
	say "model: SPIN, convergence under weak fairness"
	converges rest-after-a-crash -DWORKERS=1 -DCRASHES=1
	converges rest-after-a-cancel -DWORKERS=1 -DCRASHES=1 -DCANCELS=1 -DCALLS=1
	converges rest-after-a-loss -DWORKERS=1 -DLOSSES=1 -DCALLS=1
	converges rest-after-a-fail-over -DWORKERS=1 -DFAILOVERS=1 -DCALLS=1
	say "model: SPIN, with a rule left out"
	breaks COUNT_DOWN
	breaks TWO_STEPS
	breaks NO_VERSION_GATE -DSTOCK=2
	breaks RESET_PENDING
	breaks FREE_BY_USER -DONEUSER -DCANCELS=1
	breaks NO_PENDING
	breaks NO_BUYERS -DONEUSER -DSTOCK=2
	breaks NO_SERVER -DFAILOVERS=1
	breaks NO_TOMBSTONE -DCOPIES=1
	breaks NO_FENCE -DCOPIES=1
	breaks NO_RELEASE_AGE
	breaks NO_RELEASE_SERVER -DFAILOVERS=1
	breaks RELEASE_UNKNOWN -DLOSSES=1
	breaks SWEEP_AT_ONCE
	breaks NO_SAME_LOAD -DLOSSES=1
	breaks SNAPSHOT_FIRST -DLOSSES=1
	breaks FORGET_RECORDS -DLOSSES=1
	breaks FORGET_BUYERS -DLOSSES=1
	breaks NO_OUTWAIT_PUBLISH -DLOSSES=1
	breaks NO_DEADLINE -DCOPIES=1 -DLOSSES=1 -DCALLS=1
	breaks NO_OUTWAIT_CALLS -DCOPIES=1 -DLOSSES=1 -DCALLS=1
	breaks KEEP_DOUBTFUL -DFAILOVERS=1 -DCALLS=1
	breaks NO_EPOCH -DLOSSES=1 -DSYNCERS=2 -DCALLS=1
	breaks NO_GUARD -DNO_PENDING
	stalls SWEEP_OFF -DCALLS=1
	stalls LOAD_OFF -DLOSSES=1 -DCALLS=1
	stalls BINLOG_OFF -DCANCELS=1 -DCALLS=1
	stalls POSITION_FIRST -DCANCELS=1 -DCRASHES=1 -DCALLS=1
	stalls NO_WAY_BACK -DCANCELS=1 -DLOSSES=1 -DCALLS=1
	stalls NO_APPLYING -DCANCELS=1 -DLOSSES=1 -DCALLS=1
	stalls MARK_FIRST -DLOSSES=1 -DCRASHES=1 -DCALLS=1
	stalls MARK_BEFORE_SETTLE -DCRASHES=1 -DCALLS=1 -DBINLOG_OFF -DSWEEP_OFF
	stalls NO_WORKER_SETTLE -DCALLS=1 -DBINLOG_OFF -DSWEEP_OFF
	stalls KEEP_PENDING -DCALLS=1
	stalls WORKER_OVERWRITES -DCANCELS=1 -DCALLS=1
	stalls BINLOG_KEEPS -DCANCELS=1 -DCALLS=1
	stalls SWEEP_OVERWRITES -DCANCELS=1 -DCALLS=1
	settle ${#tries[@]}
	# And a search that breaks must fail.
	if (safety broken -DNO_PENDING -DWORKERS=1) >"$work/broken.log" 2>&1 || ! grep -q 'I4 is broken' "$work/broken.log"; then
		tail_log "$work/broken.log"
		fail "the model breaks without NO_PENDING, and the search does not say so"
	fi
}

beyond() {
	"$root/scripts/install.sh" spin
	work=$(mktemp -d)
	verifier beyond "-O2 -DBITSTATE -DSAFETY" -DWORKERS=2 -DSYNCERS=2 -DLOSSES=1 -DFAILOVERS=1 -DCRASHES=1 -DCOPIES=1
	timeout -s INT "${BEYOND:-600}" ./pan -E -w33 -m1000000 >log 2>&1 || true
	if grep -q 'errors: [1-9]' log; then
		trail
		fail "beyond: the model breaks"
	fi
	grep -E 'depth reached|states, stored|hash factor|Depth=' log | tail -n 4
}

case ${1:-all} in
all)
	walk
	formal
	;;
walk) walk ;;
spin) formal ;;
beyond) beyond ;;
*) fail "unknown part $1: give walk, spin or beyond, or nothing for walk and spin" ;;
esac
