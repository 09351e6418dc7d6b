#!/usr/bin/env bash
# Runs golangci-lint over every module of this tree and checks that each go.mod is tidy. The tool is built once, at a
# pinned version, into .cache/bin; one of the same version on PATH is used instead.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=v2.15.0
lint=$cache/bin/golangci-lint-$version
if [[ ! -x $lint ]]; then
	if [[ $(golangci-lint version --short 2>/dev/null) == "${version#v}" ]]; then
		lint=$(command -v golangci-lint)
	else
		say "building golangci-lint $version (once; a few minutes)"
		GOBIN=$cache/bin go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
		mv "$cache/bin/golangci-lint" "$lint"
	fi
fi

code=0
for mod in "$root/go.mod" "$root"/*/go.mod; do
	[[ -e $mod ]] || continue
	cd "$(dirname "$mod")"
	"$lint" run --config "$root/.golangci.yml" ./... || code=1
	go mod tidy -diff || {
		say "$mod is not tidy: run go mod tidy"
		code=1
	}
done
exit $code
