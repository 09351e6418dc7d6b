# Shared by the scripts in this folder; sourced, never run.
# shellcheck shell=bash

set -euo pipefail
export LC_ALL=C
# Debian keeps servers in sbin, which is not on an ordinary user's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache
dir=$root/.services
logs=$dir/logs

# Used by the scripts that source this file.
export root cache dir logs

say() { printf '%s\n' "$*"; }

fail() {
	printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# tail_log FILE: the last lines of a log, indented, for an error message.
tail_log() {
	[[ -s $1 ]] || return 0
	printf '  last lines of %s:\n' "$1" >&2
	tail -n "${2:-15}" "$1" | cut -c1-300 | sed 's/^/    /' >&2
}

# locked FILE: holds an exclusive lock for the rest of the script, so that two runs at once do not build the same thing
# twice. The descriptor is closed in every daemon that we start, else it would hold the lock for ever.
locked() {
	mkdir -p "$(dirname "$1")"
	exec 9>"$1"
	flock -w 900 9 || fail "another run holds $1 for 15 minutes: end it and try again"
}

# birth PID: when the process started. Pids are reused, so a pid alone never proves that a process is ours.
# Empty when there is no such process, or only a zombie that nobody has reaped.
birth() {
	local line
	if [[ -r /proc/self/stat ]]; then
		{ IFS= read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
		# The second field is the command in brackets and may hold blanks: count from behind it.
		local -a f
		read -r -a f <<<"${line##*) }"
		[[ ${f[0]} == Z ]] || printf '%s' "${f[19]}"
	else
		ps -o lstart= -p "$1" 2>/dev/null || true
	fi
}

# free_port: a loopback port on which nothing listens, from below the range that the kernel hands out to outgoing
# connections. Somebody may still take it before we do; callers try again with another.
free_port() {
	local port
	for _ in {1..50}; do
		port=$((15000 + (RANDOM * 32768 + RANDOM) % 17000))
		(exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || {
			printf '%s' "$port"
			return
		}
	done
	fail "found no free port on 127.0.0.1 between 15000 and 32000"
}

# use_services: real services for the rest of the script. Those that are given or run already are used as they are; the
# others are started now, and stopped at its end, whatever happens.
use_services() {
	ours=()
	trap stop_ours EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	have go || fail "go is missing: install Go $(sed -n 's/^go //p' "$root/go.mod") or later"
	"$root/scripts/install.sh" go
	mapfile -t ours < <("$root/scripts/services.sh" missing)
	"$root/scripts/services.sh" start
	# The plain names alone: the SECKILL_ ones are configuration of the product's programs, which tests set themselves.
	local line name
	while IFS= read -r line; do [[ $line == SECKILL_* ]] || export "${line?}"; done <"$dir/env"
	for name in "${!SECKILL_@}"; do unset "$name"; done
}

stop_ours() {
	trap '' INT TERM HUP
	((${#ours[@]} == 0)) || "$root/scripts/services.sh" stop -q "${ours[@]}"
}
