#!/usr/bin/env bash
# Runs the tests of all modules of this tree on real services: uses those that are given or run already, starts the
# others, and stops what it started, whatever happens. The exit code and the last lines are go test's own.
#
#   scripts/test.sh [PACKAGE… and flags of go test]     default: ./... here and in nested modules
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

use_services

# Two packages at a time: they share the servers and, on a small machine, the cores.
flags=(-race -count=1 -p 2 -timeout 20m)

if (($#)); then
	cd "$root"
	go test "${flags[@]}" "$@"
	exit
fi

"$root/scripts/install.sh" browser # for the pages of the demo's shop
code=0
"$root/model/check.sh" || code=$?
for mod in "$root"/*/go.mod "$root/go.mod"; do
	[[ -e $mod ]] || continue
	cd "$(dirname "$mod")"
	# What has no tests must still compile. It is left out of the run itself, so that what go test says last is a result.
	go build ./... || code=$?
	mapfile -t tested < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
	((${#tested[@]} == 0)) || go test "${flags[@]}" "${tested[@]}" || code=$?
done
exit $code
