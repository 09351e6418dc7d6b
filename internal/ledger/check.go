package ledger

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Finding is something that a start-up check found about Redis.
type Finding struct {
	Fatal bool   // selling on this server is not safe
	Name  string // for configuration: one word
	Text  string
}

// Check looks at the settings of the server, or of every master of a cluster. An eviction policy that may drop keys is fatal.
func (l *Ledger) Check(ctx context.Context) ([]Finding, error) {
	if err := l.rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("ping redis: %w", l.remedy(err))
	}
	if _, err := l.Inspect(ctx, 0); err != nil { // no activity has this id: what is tried is the right to run scripts
		return nil, l.remedy(err)
	}
	cluster, ok := l.rdb.(*redis.ClusterClient)
	if !ok {
		return checkServer(ctx, l.rdb, "redis"), nil
	}
	var mu sync.Mutex
	var found []Finding
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		one := checkServer(ctx, c, "redis at "+c.Options().Addr)
		mu.Lock()
		defer mu.Unlock()
		found = append(found, one...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask the masters of the redis cluster: %w", err)
	}
	return found, nil
}

var refusedCommand = regexp.MustCompile(`'([a-z|]+)' command`)

// remedy adds to Redis' refusal of a user the command that grants what is missing.
func (l *Ledger) remedy(err error) error {
	if text := err.Error(); !strings.Contains(text, "NOPERM") && !strings.Contains(text, "user executing the script") {
		return err
	}
	user := ""
	switch c := l.rdb.(type) {
	case *redis.Client:
		user = c.Options().Username
	case *redis.ClusterClient:
		user = c.Options().Username
	}
	right := "~seckill:* &seckill:events"
	if m := refusedCommand.FindStringSubmatch(err.Error()); m != nil {
		right = "+" + m[1]
	}
	return fmt.Errorf("%w: grant it with ACL SETUSER %s %s (docs/acl/redis.acl has all)", err, cmp.Or(user, "default"), right)
}

// checkServer says in one line each what one server should have otherwise. Managed servers hide some of it.
func checkServer(ctx context.Context, c redis.Cmdable, name string) (found []Finding) {
	add := func(fatal bool, key, format string, args ...any) {
		found = append(found, Finding{Fatal: fatal, Name: key, Text: name + " " + fmt.Sprintf(format, args...)})
	}
	switch policy, ok := setting(ctx, c, "maxmemory-policy"); {
	case !ok:
		add(false, "maxmemory_policy", "does not show its maxmemory-policy; make sure that it is noeviction")
	case policy != "noeviction":
		add(true, "maxmemory_policy", "has maxmemory-policy %s, which drops stock and reservations when memory is short; set it to noeviction", policy)
	}
	info, _ := c.Info(ctx, "everything").Result()
	if field(info, "run_id") == "" {
		add(false, "run_id", "hides its run id; a marker key stands in, which notices a server that lost everything but not one that lost its last writes")
	}
	if save, ok := setting(ctx, c, "save"); ok && field(info, "aof_enabled") == "0" {
		kept := "nothing on disk"
		if save != "" {
			kept = "only snapshots on disk"
		}
		add(false, "persistence", "keeps %s: a restart forgets open reservations that no gateway has published yet; set appendonly yes", kept)
	}
	replicas, _ := strconv.Atoi(field(info, "connected_slaves"))
	if least, ok := setting(ctx, c, "min-replicas-to-write"); ok && least == "0" && replicas > 0 {
		add(false, "min_replicas", "has %d replicas and min-replicas-to-write 0: cut off from them it goes on taking reservations, which a fail-over forgets; "+
			"set min-replicas-to-write 1", replicas)
	}
	return found
}

// setting reads one setting; not ok where the server does not show it.
func setting(ctx context.Context, c redis.Cmdable, name string) (string, bool) {
	m, err := c.ConfigGet(ctx, name).Result()
	if err != nil {
		return "", false
	}
	v, ok := m[name]
	return v, ok
}

// field reads one line of INFO.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && key == name {
			return value
		}
	}
	return ""
}
