package store

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SyncerHost is the name under which the syncer registers with the server whose binary log it reads.
const SyncerHost = "seckill-syncer"

// checkSemiSync warns of replicas that a commit does not wait for: promoted, one of them may lack orders that buyers were told
// of. Who may not list replicas (REPLICATION SLAVE) is told nothing: the syncer's account may.
func (s *Store) checkSemiSync(ctx context.Context, out *findings) error {
	all, err := Replicas(ctx, s.db)
	if n := number(err); n == 1227 || n == errTableDenied {
		return nil
	}
	if err != nil {
		return err
	}
	replicas := slices.DeleteFunc(all, func(r Replica) bool { return r.Host == SyncerHost })
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
		out.add(Warning, "semi_sync", "%d replica(s) and semi-synchronous replication is off: a promoted replica may lack commits that buyers were told of; switch it on (rpl_semi_sync), or land them again after a fail-over by seckill-worker replay --since", len(replicas))
	}
	return nil
}

// Replica is who is registered with a server as a reader of its binary log.
type Replica struct {
	ServerID uint32
	Host     string // the name that it gave
}

// listTime bounds asking for the replicas.
const listTime = 10 * time.Second

// Replicas lists who is registered with the server as a reader of its binary log. It needs REPLICATION SLAVE.
func Replicas(ctx context.Context, db *sql.DB) (all []Replica, err error) {
	add := func(r *sql.Rows) error {
		row, err := rowOf(r)
		if err != nil {
			return err
		}
		one := Replica{Host: row["Host"]}
		for name, value := range row {
			if id, err := strconv.ParseUint(value, 10, 32); err == nil && strings.EqualFold(name, "Server_id") { // spelt in two ways
				one.ServerID = uint32(id)
			}
		}
		all = append(all, one)
		return nil
	}
	err = query(ctx, db, listTime, add, "SHOW REPLICAS") // MySQL 8.0.22 and later; the only spelling from 8.4 on
	if number(err) == errSyntax {
		err = query(ctx, db, listTime, add, "SHOW SLAVE HOSTS")
	}
	return all, err
}
