#!/usr/bin/env bash
# Fuzzes every parser of outside input, three targets at a time, each for FUZZTIME (default 60s), on the real Redis where scripts
# are concerned. What it finds is kept as a seed below the package's testdata/fuzz and is run by every `make test` from then on.
#
#   scripts/fuzz.sh [FUNCTION…]     default: all, e.g. FuzzReserve FuzzPath
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

have go || fail "go is missing: install Go $(sed -n 's/^go //p' "$root/go.mod") or later"
"$root/scripts/install.sh" go redis
cd "$root"
time=${FUZZTIME:-60s}
out=$(mktemp -d)
set -m # each target is a process group of its own, so that its end takes the fuzzer along
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || :; done; rm -rf "$out"' EXIT

# fuzz PACKAGE FUNCTION: one line if nothing was found, else what was and the input that does it.
fuzz() {
	local log=$out/${1//\//_}.$2 input code=0
	(cd "$1" && exec "$(binary "$1")" -test.run='^$' -test.fuzz="^$2\$" -test.fuzztime="$time" -test.fuzzcachedir="$log.cache" \
		-test.parallel 1) >"$log" 2>&1 || code=$?
	# Up to Go 1.26 a target may end like this because its time is up (golang/go#75804): nothing was found then.
	input=$(sed -n 's/^ *Failing input written to //p' "$log" | tail -n 1)
	if ((code)) && [[ -z $input ]] && grep -A1 "^--- FAIL: $2 " "$log" | grep -qx ' *context deadline exceeded' &&
		! grep -Eq 'panic:|_test\.go:' "$log"; then
		code=0
	fi
	if ((code == 0)) && grep -q 'execs: [1-9]' "$log"; then
		say "ok    $2 in $1: $(grep -o 'execs: [0-9]*' "$log" | tail -n 1)"
		touch "$log.ok"
		return
	fi
	if ((code == 0)); then
		say "FAIL  $2 in $1: not one input was tried in $time: give it longer (FUZZTIME)"
		return
	fi
	say "FAIL  $2 in $1"
	grep -v '^fuzz: elapsed' "$log" | tail -n 30 | cut -c1-300 | sed 's/^/      /'
	[[ -z $input ]] || say "      the input is kept in $1/$input: commit it with the remedy"
}

binary() { printf '%s' "$out/${1//\//_}.test"; }

targets=()
while IFS=: read -r file function; do
	(($# == 0)) || [[ " $* " == *" $function "* ]] || continue
	package=./$(dirname "$file")
	targets+=("$package $function")
	# Once for all its targets, and not several at a time: they share most of what has to be compiled.
	[[ -x $(binary "$package") ]] || go test -c -fuzz=. -o "$(binary "$package")" "$package"
done < <(grep -rEo --include='*_test.go' '^func Fuzz\w+' . --exclude-dir=.services --exclude-dir=.cache | sed 's#^\./##; s#func ##' | sort)
((${#targets[@]})) || fail "no such fuzz test: $*"

running=0
for target in "${targets[@]}"; do
	((running < 3)) || wait -n
	# shellcheck disable=SC2086 # two words
	fuzz $target &
	running=$((running < 3 ? running + 1 : 3))
done
wait
(($(find "$out" -name '*.ok' | wc -l) == ${#targets[@]})) || exit 1
