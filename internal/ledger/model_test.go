package ledger

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// modelSteps is how many random steps TestModelOfTheProtocol plays; `make model` plays a million.
func modelSteps(t *testing.T) int {
	t.Helper()
	text := os.Getenv("MODEL_STEPS")
	if text == "" {
		return 50_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("MODEL_STEPS is %q: give a number of steps", text)
	}
	return n
}

func startModelServer(t *testing.T) *modelServer {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	testenv.StartRedis(t, "--unixsocket", socket)
	return newModelServer(t, "unix", socket)
}

func TestModelOfTheProtocol(t *testing.T) {
	began := time.Now()
	played, bad := explore(t.Context(), startModelServer(t), 1, modelSteps(t), nil)
	if bad != nil {
		t.Fatal(bad)
	}
	t.Logf("nothing broke: %d steps, %.0f a second", played, float64(played)/time.Since(began).Seconds())
}
