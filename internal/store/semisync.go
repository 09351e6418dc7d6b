package store

import (
	"context"
	"database/sql"
	"slices"
	"strings"
)

// SyncerHost is the name under which the syncer registers with the server whose binary log it reads.
const SyncerHost = "seckill-syncer"

// checkSemiSync warns of replicas that a commit does not wait for: promoted, one of them may lack orders that buyers were told
// of. Who may not list replicas (REPLICATION SLAVE) is told nothing: the syncer's account may.
func (s *Store) checkSemiSync(ctx context.Context, all *findings) error {
	hosts, err := s.replicaHosts(ctx)
	if n := number(err); n == 1227 || n == errTableDenied {
		return nil
	}
	if err != nil {
		return err
	}
	replicas := slices.DeleteFunc(hosts, func(host string) bool { return host == SyncerHost })
	if len(replicas) == 0 {
		return nil
	}
	on := false
	err = s.query(ctx, func(r *sql.Rows) error {
		var name, value string
		err := r.Scan(&name, &value)
		on = on || strings.EqualFold(value, "ON")
		return err
		// MariaDB and MySQL 8.0 say master, later ones source.
	}, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status')")
	if err != nil {
		return err
	}
	if !on {
		all.add(Warning, "semi_sync", "%d replica(s) and semi-synchronous replication is off: a promoted replica may lack commits that buyers were told of; switch it on (rpl_semi_sync), or land them again after a fail-over by seckill-worker replay --since", len(replicas))
	}
	return nil
}

// replicaHosts names who is registered with the server as a reader of its binary log.
func (s *Store) replicaHosts(ctx context.Context) (hosts []string, err error) {
	add := func(r *sql.Rows) error {
		row, err := rowOf(r)
		hosts = append(hosts, row["Host"])
		return err
	}
	err = s.query(ctx, add, "SHOW REPLICAS") // MySQL 8.0.22 and later; the only spelling from 8.4 on
	if number(err) == errSyntax {
		err = s.query(ctx, add, "SHOW SLAVE HOSTS")
	}
	return hosts, err
}
