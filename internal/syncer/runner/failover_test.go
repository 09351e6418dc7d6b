package runner_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// E103: MySQL comes back five transactions behind, as a replica that is promoted. Redis follows it, health is red with the
// one command that lands the lost orders again, and after it everything is as it was told to the buyers.
func TestE103MySQLFailsOverAndLosesCommits(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	b := synctest.NewOn(t, server.DSN("shop"))
	a, _, h := following(t, b, 20)
	b.Buy(a, "kept", 1)
	b.Land(true)
	b.Equal(a)
	caughtUp(b)
	replica := filepath.Join(t.TempDir(), "replica")
	server.Stop()
	copyDir(t, server.Dir, replica)
	server.Restart()
	b.Ready(h)
	for i := range 5 {
		b.Buy(a, fmt.Sprintf("lost%d", i), 2)
		b.Land(true)
	}
	b.Equal(a)
	caughtUp(b)
	server.Stop()
	if err := os.RemoveAll(server.Dir); err != nil {
		t.Fatal(err)
	}
	copyDir(t, replica, server.Dir)
	server.Restart()
	if s := b.Stock(a); s != 19 {
		t.Fatalf("the promoted server has stock %d, want 19", s)
	}
	b.Equal(a) // Redis follows, and is not frozen
	testenv.Eventually(t, 20*time.Second, "health to name the command", func() bool {
		err := h.Of("compare")
		return err != nil && strings.Contains(err.Error(), "5 orders") && strings.Contains(err.Error(), "seckill-worker replay --since")
	})
	b.Restock(a, 1)
	b.Equal(a)
	b.Replay()
	b.Ready(h)
	b.Equal(a)
	if s := b.Stock(a); s != 10 {
		t.Fatalf("stock %d after the replay, want 20 + 1 restocked - 11 sold", s)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", from, err, out)
	}
}
