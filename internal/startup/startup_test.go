package startup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type health struct{ err error }

func (h *health) Set(_ string, err error) { h.err = err }

func found(f ...Finding) Check {
	return Check{System: "redis", Ask: func(context.Context) ([]Finding, error) { return f, nil }}
}

var unsafe = Finding{store.Unsafe, "redis", "maxmemory_policy", "it may evict"}

// A finding is accepted by its name, and by the name as the message shows it.
func TestAccept(t *testing.T) {
	for _, c := range []struct {
		accept  []string
		refused bool
		names   string // that match nothing
	}{
		{nil, true, ""},
		{[]string{"maxmemory_policy"}, false, ""},
		{[]string{"redis/maxmemory_policy"}, false, ""},
		{[]string{"mysql/maxmemory_policy"}, true, "mysql/maxmemory_policy"},
		{[]string{"maxmemory-policy"}, true, "maxmemory-policy"},
		{[]string{"maxmemory_policy", "read_only"}, false, "read_only"},
	} {
		err := Refusal([]Finding{unsafe}, c.accept)
		if (err != nil) != c.refused || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%v: %v", c.accept, err)
		}
		if got := strings.Join(Unmatched([]Finding{unsafe}, c.accept), ","); got != c.names {
			t.Errorf("%v: %q match nothing, want %q", c.accept, got, c.names)
		}
		var out bytes.Buffer
		Print(&out, []Finding{unsafe}, nil, c.accept)
		if !strings.Contains(out.String(), "redis/maxmemory_policy: it may evict") || strings.Contains(out.String(), "accept: "+c.names) != (c.names != "") {
			t.Errorf("%v: %s", c.accept, &out)
		}
	}
}

// Each line of the log has every key once, and what refuses the start is an error.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zap.DebugLevel))
	h := &health{}
	err := Await(t.Context(), []Check{found(unsafe, Finding{store.Warning, "redis", "redis", "hm"})}, nil, "work", h, log)
	if !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Count(lines[0], `"level"`) != 1 {
		t.Fatalf("%s", &out)
	}
	var line struct{ Level, Severity, Check string }
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil || line.Level != "error" || line.Severity != "unsafe" || line.Check != "redis/maxmemory_policy" {
		t.Errorf("%+v, %v", line, err)
	}
}

// An accepted finding is a warning, and a name that matches nothing is told.
func TestAccepted(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	if err := Await(t.Context(), []Check{found(unsafe)}, []string{"maxmemory_policy", "maxmemry"}, "work", &health{}, zap.New(core)); err != nil {
		t.Fatal(err)
	}
	all := logs.All()
	if len(all) != 2 || all[0].Level != zap.WarnLevel || all[1].Level != zap.WarnLevel || !strings.Contains(all[1].Message, "accept") {
		t.Errorf("%+v", all)
	}
}

// A system that hangs is told of soon, while it is still being asked, and does not hold up the others.
func TestSlow(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	var asked atomic.Int32
	var later atomic.Bool
	hang := Check{System: "mysql", Where: "10.0.0.1:3306", Ask: func(ctx context.Context) ([]Finding, error) {
		if asked.Add(1) > 1 {
			return nil, nil
		}
		for logs.FilterMessage("mysql does not answer yet").Len() == 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil, errors.New("connection refused")
	}}
	next := Check{System: "kafka", Ask: func(context.Context) ([]Finding, error) {
		later.Store(asked.Load() < 2)
		return nil, nil
	}}
	h := &health{}
	if err := await(t.Context(), []Check{hang, next}, nil, "work", h, zap.New(core), 20*time.Millisecond); err != nil || h.err != nil {
		t.Fatal(err, h.err)
	}
	told := logs.FilterMessage("mysql does not answer yet").All()
	if len(told) != 1 || told[0].ContextMap()["at"] != "10.0.0.1:3306" || !later.Load() {
		t.Errorf("%+v", told)
	}
	if logs.FilterMessage("waiting for a system before work begins").Len() != 1 {
		t.Errorf("%+v", logs.All())
	}
}
