package ledger

import (
	"strconv"
	"strings"
)

// Keys outside of any activity. The lease and the binlog position share a hash tag, so that one script may touch both.
const (
	catalogueKey = "seckill:activities"
	landedKey    = "seckill:landed"
	leaderKey    = "seckill:{syncer}:leader"
	positionKey  = "seckill:{syncer}:binlog"
	// EventsChannel is the one channel on which every change that a gateway caches is published.
	EventsChannel = "seckill:events"
)

// Keys names the keys of one activity. They share the literal hash tag {<activity>}, so that one script may touch them
// all on Redis Cluster. This is the only place that builds them.
type Keys struct {
	Stock, Version, Pending, Ledger, Buyers, Activity, Marker string

	tag string
}

// KeysOf names the keys of an activity.
func KeysOf(activity int64) Keys {
	tag := "{" + strconv.FormatInt(activity, 10) + "}"
	return Keys{
		Stock:    "seckill:stock:" + tag,
		Version:  "seckill:version:" + tag,
		Pending:  "seckill:pending:" + tag,
		Ledger:   "seckill:ledger:" + tag,
		Buyers:   "seckill:buyers:" + tag,
		Activity: "seckill:activity:" + tag,
		Marker:   "seckill:marker:" + tag,
		tag:      tag,
	}
}

// prefixes of the keys of which an activity has many.
const (
	userWindowPrefix = "seckill:user_freq:"
	resultPrefix     = "seckill:result:"
	lastOrderPrefix  = "seckill:last:"
)

// UserWindow is the key of a user's window, Result that of an order's outcome, LastOrder that of a user's last dead order.
func (k Keys) UserWindow(user string) string { return userWindowPrefix + k.tag + ":" + user }

// Result is the key of an order's outcome.
func (k Keys) Result(orderID string) string { return resultPrefix + k.tag + ":" + orderID }

// LastOrder is the key of the user's last order that died, for "my order" once no live one is left.
func (k Keys) LastOrder(user string) string { return lastOrderPrefix + k.tag + ":" + user }

// base lists the keys that every script gets first, with room for more.
func (k Keys) base(more int) []string {
	return append(make([]string, 0, 7+more), k.Stock, k.Version, k.Pending, k.Ledger, k.Buyers, k.Activity, k.Marker)
}

// members appends the two keys of each member of a reserve call, all of them parts of one string: they are asked for together
// and forgotten together.
func (k Keys) members(keys []string, members []Reservation) []string {
	size := 0
	for i := range members {
		size += len(resultPrefix) + len(userWindowPrefix) + 2*len(k.tag) + 2 + len(members[i].Order) + len(members[i].User)
	}
	var all strings.Builder
	all.Grow(size)
	add := func(parts ...string) {
		from := all.Len()
		for _, p := range parts {
			all.WriteString(p)
		}
		keys = append(keys, all.String()[from:]) // what is written does not move: there is room for all
	}
	for i := range members {
		add(resultPrefix, k.tag, ":", members[i].Order)
		add(userWindowPrefix, k.tag, ":", members[i].User)
	}
	return keys
}
