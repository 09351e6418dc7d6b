#!/usr/bin/env bash
# Plays a whole sale while everything is killed, paused and cut at random, and judges it: see docs/reliability.md. The
# programs in bin/ must have been built; `make chaos` does both.
#
#   CHAOS_SEED     decides the faults (default: drawn, and printed)
#   CHAOS_MINUTES  of sale (default 5)
#   CHAOS_SETUP    base, cluster, sentinel or brokers (default base)
#   CHAOS_KINDS    only these faults, separated by commas, each as kind or kind@target (a comma within a name is written as a semicolon)
#   CHAOS_BUYERS   default 60000, for a third as many units
#   CHAOS_OPENS    how much is on sale from the beginning, as a share of the units (default 0.2); the rest comes while it goes on
#   CHAOS_REPORT   document that gets the table, between its markers
#   CHAOS_BIN      folder of the programs (default bin/)
#
# scripts/chaos.sh mutations: takes one protection after the other out of the product and shows that a short run notices.
# scripts/chaos.sh soak: one sale after the other at a steady rate, without faults, and whether every process stays as it was.
#
#   SOAK_MINUTES   default 30
#   SOAK_RATE      orders a second (default 100); a quarter more buyers come than there is stock for
#   SOAK_REPORT    document that gets the table between its markers, and soak.svg beside it
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

have go || fail "go is missing: install Go $(sed -n 's/^go //p' "$root/go.mod") or later"
"$root/scripts/install.sh" go redis mysql kafka >/dev/null
# A path from the caller's folder; the test runs in its own.
absolute() { case $1 in '' | /*) printf '%s' "$1" ;; *) printf '%s/%s' "$root" "$1" ;; esac; }
CHAOS_BIN=$(absolute "${CHAOS_BIN:-bin}") CHAOS_REPORT=$(absolute "${CHAOS_REPORT:-}") CHAOS_LOGS=$(absolute "${CHAOS_LOGS:-.chaos}")
SOAK_REPORT=$(absolute "${SOAK_REPORT:-}")
export SOAK_REPORT CHAOS_BIN CHAOS_REPORT CHAOS_LOGS
cd "$root"
case ${1:-} in
'')
	minutes=${CHAOS_MINUTES:-5}
	exec go test -tags chaos -count=1 -timeout "$((2 * ${minutes%.*} + 20))m" -run '^TestChaos$' -v ./internal/chaos
	;;
mutations)
	export CHAOS_SEED=${CHAOS_SEED:-1} CHAOS_MINUTES=${CHAOS_MINUTES:-1.5} CHAOS_BUYERS=${CHAOS_BUYERS:-9000}
	exec go test -tags chaos -count=1 -timeout 90m -run '^TestMutations$' -v ./internal/chaos
	;;
soak)
	minutes=${SOAK_MINUTES:-30}
	exec go test -tags chaos -count=1 -timeout "$((${minutes%.*} + 15))m" -run '^TestSoak$' -v ./internal/chaos
	;;
*) fail "usage: chaos.sh [mutations|soak]" ;;
esac
