package binlog

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	driver "github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// A replica for which no commit waits is named at the start; the syncer, which reads the log as a replica does, is none.
func TestCheckSemiSync(t *testing.T) {
	t.Parallel()
	srv := testenv.StartMySQL(t, "--log-bin-trust-function-creators=1")
	s, err := store.Open(t.Context(), store.Config{DSN: srv.DSN("shop")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	found := func() bool {
		all, err := s.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.Name == "semi_sync" {
				if f.Level != store.Warning || !strings.Contains(f.Text, "1 replica(s)") {
					t.Errorf("%+v", f)
				}
				return true
			}
		}
		return false
	}
	cfg, err := driver.ParseDSN(srv.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	host, portText, _ := strings.Cut(cfg.Addr, ":")
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	flavor, err := s.Flavor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	register := func(id uint32, name string) {
		reader := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
			ServerID: id, Flavor: flavor, Host: host, Port: uint16(port), User: cfg.User, Password: cfg.Passwd,
			Localhost: name, Logger: slog.New(slog.DiscardHandler),
		})
		t.Cleanup(reader.Close)
		p, err := s.BinlogPosition(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reader.StartSync(mysql.Position{Name: p.File, Pos: p.Pos}); err != nil {
			t.Fatal(err)
		}
	}
	if found() {
		t.Error("told of replicas where there are none")
	}
	register(70001, store.SyncerHost)
	testenv.Eventually(t, 10*time.Second, "the syncer to register", func() bool {
		all, err := store.Replicas(t.Context(), s.DB())
		return err == nil && slices.Contains(all, store.Replica{ServerID: 70001, Host: store.SyncerHost})
	})
	if found() {
		t.Error("takes the syncer for a replica")
	}
	register(70002, "replica-1")
	testenv.Eventually(t, 10*time.Second, "a replica to be told of", found)
}
