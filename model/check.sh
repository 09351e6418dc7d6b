#!/usr/bin/env bash
# Checks the reservation protocol by its models; docs/model.md explains them.
#
#   model/check.sh          all of it, as in CI
#   model/check.sh walk     a million random steps (MODEL_STEPS) over the real scripts on a real Redis, and whether each
#                           rule that is left out on purpose is found
#   model/check.sh spin     the formal model model/seckill.pml, searched whole in bounded sizes, and whether SPIN finds
#                           the rules that are left out of it
#   model/check.sh beyond   the formal model with two workers, two syncers and two faults, as far as bitstate hashing reaches in
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

# verifier NAME "COMPILER FLAGS" MACRO…: builds the verifier of the model with these macros in $work/NAME.
verifier() {
	mkdir -p "$work/$1"
	cd "$work/$1"
	printf '%s\n' "${@:3}" >macros
	# shellcheck disable=SC2086 # several flags
	{ spin -a "${@:3}" "$root/model/seckill.pml" && gcc -w -O2 -DVECTORSZ=2048 $2 -o pan pan.c; } >log 2>&1 || {
		tail_log "$work/$1/log"
		fail "the verifier of $1 cannot be built"
	}
}

# search NAME "FLAGS OF PAN": prints what was searched, and ends 1 when something breaks or the search is not complete.
search() {
	cd "$work/$1"
	# shellcheck disable=SC2086
	./pan -E $2 >log 2>&1 || true
	if ! grep -q 'errors: 0$' log || grep -qE 'Search not completed|max search depth too small|out of memory' log; then
		local macros
		mapfile -t macros <macros
		[[ ! -e seckill.pml.trail ]] || spin -k seckill.pml.trail -p -g "${macros[@]}" "$root/model/seckill.pml" | tail -80 || true
		tail_log "$work/$1/log" 60
		fail "$1: the model breaks, or was not searched whole"
	fi
	say "  $1: $(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' log | head -1) states, depth $(sed -n 's/.*depth reached \([0-9]*\),.*/\1/p' log)," \
		"$(sed -n 's/^ *\([0-9.]*\).*total actual memory usage/\1/p' log) MB"
}

# finds RULE MACRO…: the model without a rule must break.
finds() {
	verifier "$1" "-DCOLLAPSE -DSAFETY" "-D$1" "${@:2}"
	./pan -E -m100000 >log 2>&1 || true
	grep -q 'errors: 1$' log || fail "without $1 the model does not break: see docs/model.md"
	say "  $1: found at depth $(sed -n 's/.*(at depth \([0-9]*\)).*/\1/p' log | head -1)"
	rm -rf "${work:?}/$1"
}

formal() {
	"$root/scripts/install.sh" spin
	work=$(mktemp -d)
	say "model: SPIN, safety"
	verifier two-workers "-DCOLLAPSE -DSAFETY" -DFAULTS=0
	search two-workers -m100000
	verifier two-workers-and-a-fault "-DCOLLAPSE -DSAFETY" -DCOPIES=0 -DCRASHES=0
	search two-workers-and-a-fault -m100000
	say "model: SPIN, convergence under weak fairness"
	verifier converges "-DCOLLAPSE -DNFAIR=20" -DCONVERGENCE -DWORKERS=1 -DFAULTS=0 -DCOPIES=0
	search converges "-a -f -m1000000"
	say "model: SPIN, with a rule left out"
	finds TWO_STEPS -DWORKERS=1 -DFAULTS=0
	finds NO_VERSION_GATE -DWORKERS=1 -DFAULTS=0 -DSTOCK=2
	finds RESET_PENDING -DWORKERS=1
	finds NO_TOMBSTONE -DWORKERS=1 -DFAULTS=0
	finds NO_FENCE -DWORKERS=1 -DFAULTS=0
	finds NO_RELEASE_AGE -DWORKERS=1 -DFAULTS=0
	finds NO_RELEASE_SERVER -DWORKERS=1
	finds RELEASE_UNKNOWN -DWORKERS=1
	finds SWEEP_AT_ONCE -DWORKERS=1 -DFAULTS=0
	finds SNAPSHOT_FIRST -DWORKERS=1
	finds NO_OUTWAIT_PUBLISH -DWORKERS=1
}

beyond() {
	"$root/scripts/install.sh" spin
	work=$(mktemp -d)
	verifier beyond "-DBITSTATE -DSAFETY" -DSYNCERS=2 -DFAULTS=2
	timeout "${BEYOND:-600}" ./pan -E -w33 -m1000000 >log 2>&1 || true
	grep -q 'errors: [1-9]' log && fail "beyond: the model breaks"
	tail -n 3 log
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
