#!/usr/bin/env bash
# Builds Caddy with the seckillgate modules, by xcaddy, as users of Caddy plugins do.
#
#   ./xcaddy.sh                     from this checkout, into bin/caddy
#   ./xcaddy.sh v1.2.3              from a published version (also `latest` or a branch), with nothing of this checkout
#   ./xcaddy.sh -o FILE […]         into FILE
#   ./xcaddy.sh … -- --with MOD     what stands behind -- goes to xcaddy as it is: other plugins, for example
#
# CADDY_VERSION picks another Caddy than the one that go.mod names. Needs Go; installs nothing outside of .cache/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
	sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
	exit "$1"
}

fail() {
	printf 'xcaddy.sh: %s\n' "$*" >&2
	exit 1
}

output=bin/caddy
version=
extra=()
while (($#)); do
	case $1 in
	-h | --help) usage 0 ;;
	-o | --output)
		output=${2:?"-o needs a file"}
		shift
		;;
	--)
		extra=("${@:2}")
		break
		;;
	-*) usage 2 >&2 ;;
	*)
		[[ -z $version ]] || usage 2 >&2
		version=$1
		;;
	esac
	shift
done

command -v go >/dev/null || fail "go is missing: install Go $(sed -n 's/^go //p' go.mod) or later"
module=$(go list -m)
caddy=${CADDY_VERSION:-$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)}

# A pinned xcaddy, built once. The go command keeps its own copy of what it downloads.
xcaddy=$PWD/.cache/bin/xcaddy-v0.4.5
if [[ ! -x $xcaddy ]]; then
	echo "building xcaddy v0.4.5" >&2
	GOBIN=$PWD/.cache/bin go install github.com/caddyserver/xcaddy/cmd/xcaddy@v0.4.5
	mv .cache/bin/xcaddy "$xcaddy"
fi

mkdir -p "$(dirname "$output")"
if [[ -n $version ]]; then
	"$xcaddy" build "$caddy" --with "$module/caddymodule@$version" --output "$output" "${extra[@]}"
else
	[[ -d caddymodule ]] || fail "there is no caddymodule/ in $PWD: run this in a whole checkout"
	offline=()
	if ((${#extra[@]} == 0)) && [[ -z ${CADDY_VERSION:-} ]]; then
		# go.sum names all that this build needs. With that at hand nothing is looked up, so it works with a module proxy
		# that does not know this module's path, or with none.
		go mod download
		offline=(GOPROXY=off GOSUMDB=off)
	fi
	env "${offline[@]}" "$xcaddy" build "$caddy" --with "$module/caddymodule" --replace "$module=." \
		--output "$output" "${extra[@]}"
fi

"$output" list-modules | grep seckill || fail "$output was built, but has no seckill modules: is caddymodule complete?"
