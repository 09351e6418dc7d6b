package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/testenv"
	"github.com/seckillgate/seckillgate/internal/told"
)

// E87: the gateway dies, as by kill -9, between the reservation and its publication, and between that and the answer. Nothing of what it
// had in hand is lost or leaks: what was reserved is published by the sweep, and lands once. The worker's points are tried by
// its own package (TestKilledAtEachStep), the syncer's by its own (TestE49KilledAtEveryStep).
func TestE87GatewayKilledAtEachStep(t *testing.T) {
	crashing := filepath.Join(t.TempDir(), "caddy")
	build := exec.Command("go", append(append([]string{"build"}, raceFlags...), "-tags", "crashpoints", "-o", crashing, "./cmd/caddy")...)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the gateway with its crash points: %v\n%s", err, out)
	}
	for _, step := range []string{"after_reserve:40", "after_publish:40"} {
		t.Run(strings.ReplaceAll(step, ":", "_"), func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			at := step
			s.gateway = testenv.StartProgram(s, "caddy", func() *exec.Cmd {
				cmd := s.cmd("caddy", "run")
				cmd.Path = crashing
				cmd.Env = append(cmd.Env, crashpoint.Env+"="+at)
				return cmd
			}, func() error {
				_, err := s.get("/", "")
				return err
			})
			const buyers = 200
			id := s.sell(2 * buyers)
			records := s.rush(id, buyers, loadgen.NewStats())
			if !strings.Contains(s.gateway.Log(), "crash point "+strings.Split(step, ":")[0]) {
				t.Fatalf("the gateway did not die at %s:\n%s", step, last(s.gateway))
			}
			s.gateway.Kill() // reap it
			at = ""
			s.gateway.Restart()
			s.open4Sale(id)
			// The same buyers again: whoever got nothing buys, whoever got something without hearing of it is told.
			records = append(records, s.rush(id, buyers, loadgen.NewStats())...)
			s.check(id, 2*buyers, records)

			unheard := map[string]bool{}
			for i := range records {
				if r := &records[i]; r.Answer == told.Unknown {
					unheard[r.User] = true
				}
			}
			found := ""
			for i := range records {
				if r := &records[i]; r.Answer == "already_ordered" && unheard[r.User] {
					found = r.OrderID
				}
			}
			if found == "" {
				t.Fatal("no buyer who heard nothing has an order: the step was not in the way of any")
			}
			var status string
			testenv.Eventually(t, time.Minute, "the order that its buyer never heard of has landed", func() bool {
				err := s.store.DB().QueryRow("SELECT status FROM orders WHERE order_id = ?", found).Scan(&status)
				return err == nil
			})
			if want := "CONFIRMED"; status != want {
				t.Errorf("order %s is %s, want %s", found, status, want)
			}
		})
	}
}
