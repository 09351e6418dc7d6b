#!/usr/bin/env bash
# Checks the reservation protocol by its models; docs/model.md explains them.
#
#   model/check.sh          all of it, as in CI
#   model/check.sh walk     a million random steps (MODEL_STEPS) over the real scripts on a real Redis, and whether each
#                           rule that is left out on purpose is found
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

walk() {
	"$root/scripts/install.sh" redis
	cd "$root"
	say "model: ${MODEL_STEPS:=1000000} random steps over the real scripts, and each rule left out"
	export MODEL_STEPS
	go test -count=1 -timeout 20m -run '^TestModel' ./internal/ledger
}

case ${1:-all} in
all | walk) walk ;;
*) fail "unknown part $1: give walk, or nothing for all" ;;
esac
