#!/usr/bin/env bash
# Fuzzes every parser of outside input, each for FUZZTIME (default 60s), on the real Redis where scripts are concerned.
# What it finds is kept as a seed below the package's testdata/fuzz and is run by every `make test` from then on.
#
#   scripts/fuzz.sh [FUNCTION…]     default: all, e.g. FuzzReserve FuzzPath
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

have go || fail "go is missing: install Go $(sed -n 's/^go //p' "$root/go.mod") or later"
"$root/scripts/install.sh" go redis
cd "$root"
time=${FUZZTIME:-60s}

found=0
while IFS=: read -r file function; do
	(($# == 0)) || [[ " $* " == *" $function "* ]] || continue
	found=1
	package=./$(dirname "$file")
	say "== $function in $package, $time"
	go test -run='^$' -fuzz="^$function\$" -fuzztime="$time" "$package" || fail "$function failed in $package: the input is kept in $package/testdata/fuzz/$function; commit it with the remedy"
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z]+' . --exclude-dir=.services --exclude-dir=.cache | sed 's#^\./##; s#func ##' | sort)
((found)) || fail "no such fuzz test: $*"
