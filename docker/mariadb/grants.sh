#!/bin/sh
# Run once by the image, when it lays a new database: what the product's user needs beside its own database.
set -eu
mariadb -uroot -p"$MARIADB_ROOT_PASSWORD" <<SQL
GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO '$MARIADB_USER'@'%';
SQL
