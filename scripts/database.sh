#!/usr/bin/env bash
# The database server of the tests: MariaDB, or MySQL itself with MYSQL_SERVER=mysql in the environment.
#
#   scripts/database.sh datadir DESTINATION     a fresh data directory with the database `seckill` and the user `seckill`
#                                               (password `seckill`, all rights). Well under a second: it copies one that
#                                               was initialised once and is kept in .cache/
#   scripts/database.sh run DATADIR PORT [OPTION…]
#                                               becomes the server, durable and with a full row binlog, on 127.0.0.1:PORT;
#                                               options as on its own command line override ours
#   scripts/database.sh fetch                   installs or unpacks the server if there is none
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

user=$(id -un)
kind=${MYSQL_SERVER:-mariadb}

# ---- MariaDB ----

mariadb_fetch() { have mariadbd && have mariadb-install-db || "$root/scripts/install.sh" mysql; }

mariadb_version() { mariadbd --no-defaults --version | sed 's/.*Ver \([^ ]*\).*/\1/'; }

mariadb_init() { # mariadb_init DIR
	mariadb-install-db --no-defaults --user="$user" --datadir="$1" --tmpdir="$1" --auth-root-authentication-method=normal \
		--skip-test-db --innodb-log-file-size=8M </dev/null &&
		mariadbd --no-defaults --bootstrap --user="$user" --datadir="$1" --tmpdir="$1" --innodb-log-file-size=8M <<-'SQL'
			FLUSH PRIVILEGES;
			CREATE DATABASE seckill CHARACTER SET utf8mb4;
			CREATE USER 'seckill'@'%' IDENTIFIED BY 'seckill';
			GRANT ALL PRIVILEGES ON *.* TO 'seckill'@'%' WITH GRANT OPTION;
		SQL
}

mariadb_run() { exec mariadbd --no-defaults --binlog-format=ROW --innodb-log-file-size=64M --socket= "$@"; }

# ---- MySQL ----

# Debian's stable releases have no MySQL, its unstable one has. What apt-get unpacks below .cache/ runs with the loader and
# the libraries that came with it, and nothing of this system changes.
unpacked=$cache/mysql

mysqld_here() {
	local path
	path=$(command -v mysqld) && ! mysqld --no-defaults --version | grep -qi mariadb && printf '%s' "$path"
}

mysql_fetch() {
	[[ -n $(mysqld_here) || -e $unpacked/.complete ]] && return
	have apt-get && have dpkg-deb || fail "no mysqld that is MySQL on PATH: install MySQL 8.0 or later, or name a running server in MYSQL_DSN"
	locked "$cache/mysql.lock"
	[[ -e $unpacked/.complete ]] && return
	rm -rf "$unpacked"
	mkdir -p "$unpacked"/{apt/lists/partial,apt/archives/partial,debs} "$logs"
	local log=$logs/mysql-fetch.log mirror
	say "fetching MySQL from Debian unstable (nothing is installed)" >&2
	# The mirror that this system uses anyway.
	mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2>/dev/null |
		sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\).*/\2/p' | head -1) || true
	[[ -n $mirror ]] || fail "apt-get has no mirror of Debian to fetch MySQL from: name a running server in MYSQL_DSN"
	printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s sid main\n' "$mirror" >"$unpacked/apt/sources.list"
	local options=(-o "Dir::Etc::sourcelist=$unpacked/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State::lists=$unpacked/apt/lists" -o "Dir::Cache=$unpacked/apt" -o Dir::State::status=/dev/null
		-o APT::Sandbox::User=root)
	if ! (
		set -e
		apt-get "${options[@]}" update
		names=$(apt-cache "${options[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
			--no-replaces --no-enhances mysql-server-core | grep '^[a-z0-9]' | grep -vE '^(perl|libperl)' | sort -u)
		cd "$unpacked/debs"
		# shellcheck disable=SC2086 # a list of names
		apt-get "${options[@]}" download $names
		for deb in *.deb; do dpkg-deb -x "$deb" "$unpacked"; done
	) >"$log" 2>&1 </dev/null 9>&-; then
		tail_log "$log"
		fail "apt-get cannot fetch MySQL: mend what the log says, or name a running server in MYSQL_DSN"
	fi
	rm -rf "$unpacked/apt" "$unpacked/debs"
	touch "$unpacked/.complete"
}

mysqld_command() { # fills `mysqld` with the words to run it by
	local path
	if path=$(mysqld_here); then
		mysqld=("$path")
	else
		local lib
		lib=$(dirname "$(find "$unpacked/usr/lib" -name libc.so.6 | head -1)")
		mysqld=("$(find "$unpacked/usr" -name 'ld-linux*.so.*' | head -1)" --library-path "$lib" "$unpacked/usr/sbin/mysqld")
	fi
	mysqld+=(--no-defaults)
	[[ -n $path ]] || mysqld+=(--basedir="$unpacked/usr" --plugin-dir="$unpacked/usr/lib/mysql/plugin"
		--lc-messages-dir="$unpacked/usr/share/mysql" --character-sets-dir="$unpacked/usr/share/mysql/charsets")
	mysqld+=(--mysqlx=OFF --secure-file-priv=NULL)
}

mysql_version() {
	local mysqld
	mysqld_command
	"${mysqld[@]}" --version | sed 's/.*Ver \([^ ]*\).*/\1/'
}

mysql_init() { # mysql_init DIR
	local mysqld
	mysqld_command
	cat >"$1.sql" <<-'SQL'
		CREATE DATABASE seckill CHARACTER SET utf8mb4;
		CREATE USER 'seckill'@'%' IDENTIFIED BY 'seckill';
		GRANT ALL PRIVILEGES ON *.* TO 'seckill'@'%' WITH GRANT OPTION;
	SQL
	"${mysqld[@]}" --initialize-insecure --user="$user" --datadir="$1" --tmpdir="$cache" --init-file="$1.sql" </dev/null
	rm -f "$1.sql"
}

mysql_run() {
	local mysqld
	mysqld_command
	exec "${mysqld[@]}" --gtid-mode=ON --enforce-gtid-consistency=ON --innodb-redo-log-capacity=128M \
		--socket="$(mktemp -u "${TMPDIR:-/tmp}/mysql.XXXXXXXX")" "$@"
}

# ---- Both ----

[[ $kind == mariadb || $kind == mysql ]] || fail "MYSQL_SERVER=$kind: it is mariadb (the default) or mysql"
usage="usage: database.sh datadir DESTINATION | run DATADIR PORT [OPTION…] | fetch"

case ${1:-} in
fetch) "${kind}_fetch" ;;

datadir)
	dest=${2:?$usage}
	"${kind}_fetch"
	# A data directory belongs to the version that made it; the number counts the changes of this script.
	template=$cache/$kind-$("${kind}_version")-2
	if [[ ! -e $template/.complete ]]; then
		locked "$cache/$kind.lock"
		if [[ ! -e $template/.complete ]]; then
			rm -rf "$template" "$template.part"
			mkdir -p "$template.part"
			log=$cache/$kind-install.log
			if ! "${kind}_init" "$template.part" >"$log" 2>&1; then
				tail_log "$log"
				fail "$kind cannot make a data directory: see the log above"
			fi
			touch "$template.part/.complete"
			mv "$template.part" "$template"
		fi
	fi
	mkdir -p "$dest"
	cp -R "$template/." "$dest"
	# auto.cnf holds MySQL's server uuid: two servers must not share one.
	rm -f "$dest/.complete" "$dest/auto.cnf"
	;;

run)
	data=${2:?$usage} port=${3:?$usage}
	shift 3
	# A server that starts deletes what looks like leftovers in its tmpdir: in /tmp, the live temporary tables of its
	# neighbours. No socket file of MariaDB: a clone in a deep folder would exceed the length that the system allows for one.
	"${kind}_run" --user="$user" --datadir="$data" --tmpdir="$data" --bind-address=127.0.0.1 --port="$port" \
		--pid-file="$data/server.pid" --skip-name-resolve --max-connections=500 --character-set-server=utf8mb4 \
		--server-id=1 --log-bin=binlog --binlog-row-image=FULL --binlog-row-metadata=FULL --sync-binlog=1 \
		--innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=256M "$@"
	;;

*) fail "$usage" ;;
esac
