#!/usr/bin/env bash
# Real Redis, MariaDB (or MySQL with MYSQL_SERVER=mysql) and Apache Kafka on free loopback ports, for tests and for trying things out.
#
#   scripts/services.sh start     starts what does not run yet and waits until each answers; addresses in .services/env
#   scripts/services.sh stop      stops what `start` started, and nothing else; the data goes with it. Names (redis,
#                                 mysql, kafka) limit it to those
#   scripts/services.sh status    says where they are; ends 1 unless all of them run
#   scripts/services.sh missing   names those that `start` would start
#
# A service whose address is given by REDIS_ADDRS, KAFKA_BROKERS or MYSQL_DSN is used as it is and not started.
# `-q` behind the command: no output but errors.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

command=${1:-}
quiet=
[[ ${2:-} != -q ]] || quiet=1
names=("${@:2+${#quiet}}")
note() { [[ -n $quiet ]] || say "$@"; }

all=(kafka mysql redis) # the slowest to start first

# ---- Which of them are ours, and do they run? ----

given() {
	case $1 in
	redis) printf '%s' "${REDIS_ADDRS:-}" ;;
	kafka) printf '%s' "${KAFKA_BROKERS:-}" ;;
	mysql) printf '%s' "${MYSQL_DSN:-}" ;;
	esac
}

# .services/<name>.pid holds "pid birth port".
pid_of() { cut -d' ' -f1 "$dir/$1.pid"; }
port_of() { cut -d' ' -f2 "$dir/$1.pid"; }

ours_alive() {
	[[ -s $dir/$1.pid ]] || return 1
	local pid port born
	read -r pid port born <"$dir/$1.pid"
	[[ -n $port && -n $born && $(birth "$pid") == "$born" ]]
}

# answers NAME PORT: one real exchange in the service's own protocol.
answers() {
	(
		exec 3<>"/dev/tcp/127.0.0.1/$2" || exit 1
		case $1 in
		redis)
			printf 'PING\r\n' >&3
			IFS= read -r -t 2 line <&3
			[[ $line == +PONG* ]]
			;;
		mysql) # the server speaks first: length, sequence number, protocol version 10
			[[ $(timeout 2 head -c 5 <&3 | od -An -tx1) == *0a ]]
			;;
		kafka) # ApiVersions, version 0
			printf '\0\0\0\012\0\022\0\0\0\0\0\001\377\377' >&3
			[[ $(timeout 2 head -c 4 <&3 | wc -c) == 4 ]]
			;;
		esac
	) 2>/dev/null
}

running() { ours_alive "$1" && answers "$1" "$(port_of "$1")"; }

# ---- Starting ----

# launch NAME PORT COMMAND…: a daemon in a session of its own, so that neither make's end nor Ctrl-C takes it along.
launch() {
	local name=$1 port=$2
	shift 2
	setsid nohup "$@" </dev/null >"$logs/$name.log" 2>&1 9>&- &
	local pid=$!
	disown
	printf '%s %s %s\n' "$pid" "$port" "$(birth $pid)" >"$dir/$name.pid"
}

run_redis() {
	mkdir -p "$dir/redis"
	launch redis "$1" redis-server --bind 127.0.0.1 --port "$1" --dir "$dir/redis" --daemonize no \
		--maxmemory-policy noeviction --save '' --appendonly yes --appendfsync everysec
}

run_mysql() {
	[[ -d $dir/mysql/mysql ]] || "$root/scripts/database.sh" datadir "$dir/mysql"
	launch mysql "$1" "$root/scripts/database.sh" run "$dir/mysql" "$1"
}

kafka_jvm=(-Xmx512m -Xms128m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.showDateTime=true
	'-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS')

run_kafka() {
	local conf=$dir/kafka.properties control
	control=$(free_port)
	# One process is broker and controller. Everything that defaults to three copies has one.
	cat >"$conf" <<-PROPERTIES
		process.roles=broker,controller
		node.id=1
		controller.quorum.voters=1@127.0.0.1:$control
		controller.listener.names=CONTROLLER
		listeners=PLAINTEXT://127.0.0.1:$1,CONTROLLER://127.0.0.1:$control
		advertised.listeners=PLAINTEXT://127.0.0.1:$1
		listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
		inter.broker.listener.name=PLAINTEXT
		log.dirs=$dir/kafka
		auto.create.topics.enable=false
		offsets.topic.num.partitions=4
		offsets.topic.replication.factor=1
		transaction.state.log.num.partitions=2
		transaction.state.log.replication.factor=1
		transaction.state.log.min.isr=1
		share.coordinator.state.topic.num.partitions=1
		share.coordinator.state.topic.replication.factor=1
		share.coordinator.state.topic.min.isr=1
		group.initial.rebalance.delay.ms=0
		num.network.threads=2
		num.io.threads=4
		log.cleaner.dedupe.buffer.size=16777216
	PROPERTIES
	if [[ ! -e $dir/kafka/meta.properties ]]; then
		java "${kafka_jvm[@]}" -XX:TieredStopAtLevel=1 -cp "$jars/*" kafka.tools.StorageTool format \
			-t c2Vja2lsbGdhdGUtdGVzdA -c "$conf" >"$logs/kafka-format.log" 2>&1 </dev/null || {
			tail_log "$logs/kafka-format.log"
			fail "Apache Kafka cannot format $dir/kafka: see the log above"
		}
	fi
	launch kafka "$1" java "${kafka_jvm[@]}" -cp "$jars/*" kafka.Kafka "$conf"
}

# ready NAME PORT: it answers, and what it says of itself is that it is up.
ready() {
	answers "$1" "$2" && { [[ $1 != kafka ]] || grep -q 'Kafka Server started' "$logs/kafka.log"; }
}

await() { # await NAME: 0 up, 1 its port was taken meanwhile; anything else ends here
	local name=$1 port end=$((SECONDS + 90))
	port=$(port_of "$name")
	until ready "$name" "$port"; do
		if ! ours_alive "$name"; then
			grep -qiE 'address already in use|bind-address.*in use|port .* in use' "$logs/$name.log" && return 1
			tail_log "$logs/$name.log"
			fail "$name ended while starting. Mend what its log says ($logs/$name.log), or name a running one in $(variable "$name")"
		fi
		if ((SECONDS > end)); then
			tail_log "$logs/$name.log"
			fail "$name does not answer on 127.0.0.1:$port after 90 s (log: $logs/$name.log): stop it by \`make services-stop\` and try again"
		fi
		sleep 0.05
	done
}

variable() {
	case $1 in
	redis) printf REDIS_ADDRS ;;
	kafka) printf KAFKA_BROKERS ;;
	mysql) printf MYSQL_DSN ;;
	esac
}

address() {
	local is
	is=$(given "$1")
	if [[ -n $is ]]; then
		printf '%s' "$is"
	elif [[ $1 == mysql ]]; then
		printf 'seckill:seckill@tcp(127.0.0.1:%s)/seckill' "$(port_of mysql)"
	else
		printf '127.0.0.1:%s' "$(port_of "$1")"
	fi
}

write_env() {
	local name var
	{
		for name in redis kafka mysql; do
			var=$(variable "$name")
			printf '%s=%s\nSECKILL_%s=%s\n' "$var" "$(address "$name")" "$var" "$(address "$name")"
		done
	} >"$dir/env.part"
	mv "$dir/env.part" "$dir/env"
}

show() {
	local name how
	for name in redis mysql kafka; do
		how="pid $(cut -d' ' -f1 "$dir/$name.pid" 2>/dev/null || true)"
		[[ -z $(given "$name") ]] || how="given by $(variable "$name")"
		note "$(printf '%-6s %s (%s)' "$name" "$(address "$name")" "$how")"
	done
	note "addresses: $dir/env   logs: $logs"
}

missing() {
	local name
	for name in "${all[@]}"; do
		[[ -n $(given "$name") ]] || running "$name" || say "$name"
	done
}

start() {
	mkdir -p "$logs"
	locked "$dir/lock"
	local name missing=()
	mapfile -t missing < <(missing)
	if ((${#missing[@]})); then
		jars=$("$root/scripts/install.sh" "${missing[@]}" 9>&-)
		for name in "${missing[@]}"; do
			halt "$name" # one that lives but does not answer
			"run_$name" "$(free_port)"
		done
		for name in "${missing[@]}"; do
			local tries=1
			until await "$name"; do
				((tries++ < 5)) || fail "$name finds its port taken five times: is something else starting servers on 127.0.0.1?"
				"run_$name" "$(free_port)"
			done
		done
	fi
	write_env
	show
}

# ---- Stopping ----

signal() { ours_alive "$1" && kill -"$2" "$(pid_of "$1")" 2>/dev/null; }

halt() { # halt NAME…: asks them all first, then waits, then insists
	local name end=$((SECONDS + 15))
	for name in "$@"; do signal "$name" TERM || true; done
	for name in "$@"; do
		while ours_alive "$name"; do
			((SECONDS <= end)) || signal "$name" KILL || true
			sleep 0.05
		done
		rm -f "$dir/$name.pid"
	done
}

stop() {
	[[ -d $dir ]] || return 0
	locked "$dir/lock"
	((${#names[@]})) || names=("${all[@]}")
	local name stopped=() left=()
	for name in "${names[@]}"; do
		if ours_alive "$name"; then stopped+=("$name"); fi
	done
	halt "${names[@]}"
	for name in "${names[@]}"; do rm -rf "${dir:?}/$name" "$dir/$name.properties"; done
	for name in "${all[@]}"; do
		if ours_alive "$name"; then left+=("$name"); fi
	done
	((${#left[@]})) || rm -f "$dir/env"
	note "stopped: ${stopped[*]:-nothing was running}"
}

status() {
	local name bad=0
	for name in redis mysql kafka; do
		if [[ -n $(given "$name") ]] || running "$name"; then
			note "$(printf '%-6s %s' "$name" "$(address "$name")")"
		else
			note "$(printf '%-6s does not run' "$name")"
			bad=1
		fi
	done
	return $bad
}

for name in "${names[@]}"; do
	[[ " ${all[*]} " == *" $name "* ]] || fail "unknown service $name: there are ${all[*]}"
done
case $command in
start | stop | status | missing) "$command" ;;
*) fail "usage: services.sh start|stop|status|missing [-q] [NAME…]" ;;
esac
