#!/usr/bin/env bash
# Makes a fresh MariaDB data directory with the database `seckill` and the user `seckill` (password `seckill`, all
# rights), in well under a second: it copies one that was initialised once and is kept in .cache/.
#
#   scripts/mariadb-datadir.sh DESTINATION
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

dest=${1:?usage: mariadb-datadir.sh DESTINATION}
have mariadbd && have mariadb-install-db || fail "mariadbd or mariadb-install-db is missing: run \`make services\` as root, or install mariadb-server"

version=$(mariadbd --no-defaults --version | sed 's/.*Ver \([^ ]*\).*/\1/')
user=$(id -un)
# A datadir belongs to the version that made it; the number counts the changes of this script.
template=$cache/mariadb-$version-1

if [[ ! -e $template/.complete ]]; then
	locked "$cache/mariadb.lock"
	if [[ ! -e $template/.complete ]]; then
		rm -rf "$template" "$template.part"
		mkdir -p "$template.part"
		log=$cache/mariadb-install.log
		if ! mariadb-install-db --no-defaults --user="$user" --datadir="$template.part" --tmpdir="$template.part" --auth-root-authentication-method=normal \
			--skip-test-db --innodb-log-file-size=8M >"$log" 2>&1 </dev/null; then
			tail_log "$log"
			fail "mariadb-install-db fails: see the log above"
		fi
		if ! mariadbd --no-defaults --bootstrap --user="$user" --datadir="$template.part" --tmpdir="$template.part" --innodb-log-file-size=8M >>"$log" 2>&1 <<-'SQL'; then
			FLUSH PRIVILEGES;
			CREATE DATABASE seckill CHARACTER SET utf8mb4;
			CREATE USER 'seckill'@'%' IDENTIFIED BY 'seckill';
			GRANT ALL PRIVILEGES ON *.* TO 'seckill'@'%' WITH GRANT OPTION;
		SQL
			tail_log "$log"
			fail "mariadbd --bootstrap fails: see the log above"
		fi
		touch "$template.part/.complete"
		mv "$template.part" "$template"
	fi
fi

mkdir -p "$dest"
cp -R "$template/." "$dest"
rm -f "$dest/.complete"
