#!/usr/bin/env bash
# Looks for known vulnerabilities in what this tree calls, in every module of it: govulncheck over the Go vulnerability
# database. The database comes as the Go module golang.org/x/vulndb, the newest that GOPROXY has, so that a closed network
# with a module proxy can do it too; VULNDB=https://vuln.go.dev (or file:///a/folder) names another one.
#
# A finding in a dependency fails: update it. Where nobody has mended it yet, list it in scripts/vuln-allow.txt with a date and
# the reason. What is in Go's own library is told and does not fail, since no line of this tree mends it: whoever builds
# chooses the Go. VULN_GO=fail makes it fail too, for those who build what they release.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# read_report: govulncheck's text as lines of "id where has mended-in title", where the place is go or a module. One vulnerability may
# be in several: each has a line.
read_report() {
	awk '
		function put() { if (place) print id, place, has, mended, title; place = has = ""; mended = "-" }
		/^Vulnerability #[0-9]+: GO-/ { put(); id = $3; getline; sub(/^ +/, ""); title = $0 }
		/^  Standard library$/ { put(); place = "go" }
		/^  Module: / { put(); place = $2 }
		/^    Found in: / { has = $3 }
		/^    Fixed in: / { mended = $3 }
		END { put() }
	' "$1"
}

# vuln.sh read FILE: what this script makes of a report.
if [[ ${1:-} == read ]]; then
	read_report "$2"
	exit
fi

version=v1.9.0
tool=$cache/bin/govulncheck-$version
allow=$root/scripts/vuln-allow.txt

if [[ ! -x $tool ]]; then
	say "building govulncheck $version (once)"
	GOBIN=$cache/bin go install "golang.org/x/vuln/cmd/govulncheck@$version"
	mv "$cache/bin/govulncheck" "$tool"
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

db=${VULNDB:-}
if [[ -z $db ]]; then
	# Outside of any module: it is data, nothing of it enters a go.mod.
	got=$(cd "$tmp" && GOWORK=off go mod download -json golang.org/x/vulndb@latest 2>"$tmp/err") || {
		cat "$tmp/err" >&2
		sed -n 's/^\t"Error": //p' <<<"$got" >&2
		fail "the vulnerability database cannot be fetched: GOPROXY ($(go env GOPROXY)) has to serve golang.org/x/vulndb, or set VULNDB"
	}
	folder=$(sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$got")/data/osv
	[[ -d $folder ]] || fail "golang.org/x/vulndb has no folder data/osv any more: set VULNDB, and mend scripts/vuln.sh"
	say "vulnerabilities known to golang.org/x/vulndb $(sed -n 's/^\t"Version": "\(.*\)",\{0,1\}$/\1/p' <<<"$got"): $(find "$folder" -name 'GO-*.json' | wc -l)"
	db=file://$folder
fi

# Each line of the list: GO-2026-0001 2026-11-30 the reason.
bad=$(grep -vE '^(#|$)|^GO-[0-9]{4}-[0-9]+ [0-9]{4}-[0-9]{2}-[0-9]{2} .+' "$allow" || true)
[[ -z $bad ]] || fail "$allow: want 'GO-YEAR-NUMBER YYYY-MM-DD reason', not: $bad"

code=0
seen=$tmp/seen
: >"$seen"
for mod in "$root/go.mod" "$root"/*/go.mod; do
	[[ -e $mod ]] || continue
	cd "$(dirname "$mod")"
	status=0
	"$tool" -db "$db" -tags nobadger,nomysql,nopgx ./... >"$tmp/report" 2>&1 || status=$?
	if ((status != 0 && status != 3)); then # 3: something was found
		tail -n 20 "$tmp/report" >&2
		fail "govulncheck could not look at $mod"
	fi
	read_report "$tmp/report" >"$tmp/found"
	if [[ $status == 3 && ! -s $tmp/found || $status == 0 && -s $tmp/found ]]; then
		tail -n 40 "$tmp/report" >&2
		fail "govulncheck's report of $mod cannot be read: mend read_report in scripts/vuln.sh"
	fi
	cat "$tmp/found" >>"$seen"
	while read -r id place has mended title; do
		if [[ $place == go ]]; then
			continue
		elif grep -q "^$id " "$allow"; then
			say "$mod: $id in $has is allowed: $(sed -n "s/^$id //p" "$allow")"
		else
			say "$mod: $id in $has, mended in $mended: $title (https://pkg.go.dev/vuln/$id)"
			code=1
		fi
	done <"$tmp/found"
	go=$(awk '$2 == "go" {print $1}' "$tmp/found" | sort | tr '\n' ' ')
	if [[ -n $go ]]; then
		say "$mod: in the library of $(go env GOVERSION), mended in $(awk '$2 == "go" {sub(/.*@/, "", $4); print $4}' "$tmp/found" |
			sort -V | tail -n 1): $go"
		[[ ${VULN_GO:-} != fail ]] || code=1
	fi
done
while read -r id _; do
	if [[ $id == GO-* ]] && ! grep -q "^$id " "$seen"; then
		say "$allow: $id is found no more: remove its line"
		code=1
	fi
done <"$allow"
exit $code
