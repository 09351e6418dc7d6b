#!/usr/bin/env bash
# Installs what the tests need and this machine lacks. As root on Debian or Ubuntu it uses apt-get; as anyone else it
# names what is missing. The jars of Apache Kafka come through Maven and are kept in .cache/.
#
#   scripts/install.sh [redis] [mysql] [kafka] [go] [browser] [spin]
#
# prints where the Kafka jars are when kafka is among its arguments.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages=()
commands=()
need() { # need COMMAND PACKAGE…: the packages that bring the command, if it is missing
	have "$1" && return
	commands+=("$1")
	packages+=("${@:2}")
}

want_kafka=
for what in "$@"; do
	case $what in
	redis) need redis-server redis-server ;;
	mysql)
		if [[ ${MYSQL_SERVER:-mariadb} != mariadb ]]; then
			"$root/scripts/database.sh" fetch >&2
			continue
		fi
		# The core packages are the server without its start scripts: nothing is started behind our back.
		need mariadbd mariadb-server-core mariadb-client-core
		have mariadbd && need mariadb-install-db mariadb-server-core mariadb-client-core
		;;
	kafka)
		want_kafka=1
		need java openjdk-17-jre-headless
		;;
	go) need cc gcc libc6-dev ;; # the race detector needs cgo
	browser) have chromium-browser || need chromium chromium fonts-noto-cjk ;; # the sample shop's page is Chinese
	spin)
		need spin spin
		need gcc gcc libc6-dev # it writes a program in C that does the search
		;;
	*) fail "unknown part $what: give redis, mysql, kafka, go, browser or spin" ;;
	esac
done

kafka_version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$root/scripts/kafka/pom.xml")
jars=$cache/kafka-$kafka_version
[[ -z $want_kafka || -e $jars/.complete ]] || need mvn maven

if ((${#packages[@]})); then
	if ! have apt-get || [[ $(id -u) != 0 ]]; then
		fail "missing: ${commands[*]}. Install them (Debian: apt-get install ${packages[*]}), run this as root, or name running" \
			"services in REDIS_ADDRS, KAFKA_BROKERS and MYSQL_DSN"
	fi
	locked "$cache/install.lock"
	mkdir -p "$logs"
	log=$logs/apt.log
	say "installing ${packages[*]}" >&2
	# Debian starts a server as soon as it is installed, unless this file says no. Where there is one already, it stays.
	policy=/usr/sbin/policy-rc.d
	if [[ ! -e $policy ]]; then
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt=(apt-get -o DPkg::Lock::Timeout=300)
	if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1 </dev/null 9>&-; then
		tail_log "$log"
		fail "apt-get cannot install ${packages[*]}: mend what the log says, or install them by hand"
	fi
	for c in "${commands[@]}"; do
		hash -r
		have "$c" || fail "$c is still missing after installing ${packages[*]}: see $log"
	done
fi

[[ -n $want_kafka ]] || exit 0

version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
((${version:-0} >= 17)) || fail "java is version ${version:-unknown}: Apache Kafka $kafka_version needs 17 or later on PATH"

if [[ ! -e $jars/.complete ]]; then
	locked "$cache/install.lock"
	if [[ ! -e $jars/.complete ]]; then
		mkdir -p "$logs"
		log=$logs/maven.log
		say "fetching Apache Kafka $kafka_version through Maven" >&2
		rm -rf "$jars" "$jars.part"
		if ! mvn -B -ntp -f "$root/scripts/kafka/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
			-DoutputDirectory="$jars.part" >"$log" 2>&1 </dev/null 9>&-; then
			tail_log "$log"
			fail "Maven cannot fetch Apache Kafka $kafka_version: check its settings and the network, or name a running broker in KAFKA_BROKERS"
		fi
		touch "$jars.part/.complete"
		mv "$jars.part" "$jars"
	fi
fi
printf '%s\n' "$jars"
