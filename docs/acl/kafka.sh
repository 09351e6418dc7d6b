#!/bin/sh
# The rights of seckillgate in Kafka, added by Kafka's own tool:
#
#   docs/acl/kafka.sh --bootstrap-server broker:9092 --command-config admin.properties
#
# It may be run again. All arguments go to kafka-acls.sh, which is looked for on PATH; KAFKA_ACLS names another one. The
# brokers need an authorizer (authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer) and no
# allow.everyone.if.no.acl.found=true. Users of other names: GATEWAY=CN=gateway,O=Shop docs/acl/kafka.sh …
set -eu

gateway=${GATEWAY:-gateway} worker=${WORKER:-worker} syncer=${SYNCER:-syncer} migrate=${MIGRATE:-migrate}
orders=${ORDERS:-seckill.orders} dead=${DEAD_LETTERS:-seckill.orders.dlq} results=${RESULTS:-seckill.results}
group=${GROUP:-seckill-worker}
server="$*"

allow() { # allow USER OPERATION,… --topic|--group NAME…
	user=$1 rights=
	for right in $(echo "$2" | tr , ' '); do rights="$rights --operation $right"; done
	shift 2
	# shellcheck disable=SC2086 # these are lists of arguments
	"${KAFKA_ACLS:-kafka-acls.sh}" $server --add --allow-principal "User:$user" $rights "$@"
}

# Whoever may read or write a topic may describe it too.
allow "$gateway" Write --topic "$orders"

allow "$worker" Read,DescribeConfigs --topic "$orders"
allow "$worker" Read,Write,DescribeConfigs --topic "$dead"
allow "$worker" Write,DescribeConfigs --topic "$results"
allow "$worker" Read --group "$group"

# It publishes again what no gateway could (the sweep), and reads what has not landed yet.
allow "$syncer" Read,Write,DescribeConfigs --topic "$orders"
allow "$syncer" Describe,DescribeConfigs --topic "$dead" --topic "$results"
allow "$syncer" Describe --group "$group"

# For `seckill-worker migrate --create-topics` alone.
allow "$migrate" Create,Describe,DescribeConfigs --topic "$orders" --topic "$dead" --topic "$results"
