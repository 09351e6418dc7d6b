package startup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
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

// config check has a line for each finding and each system that cannot be asked, and sums them up without saying them again.
func TestConfigCheck(t *testing.T) {
	away := func(system string) Check {
		return Check{System: system, Ask: func(context.Context) ([]Finding, error) {
			return nil, errors.New("dial tcp 127.0.0.1:1:\nconnection refused")
		}}
	}
	for _, c := range []struct {
		name   string
		checks []Check
		accept []string
		lines  []string // below "Checks:"
		err    string
		code   int
	}{
		{"well", []Check{found()}, nil, []string{"run would start."}, "", 0},
		{"accepted", []Check{found(unsafe)}, []string{"maxmemory_policy"}, []string{"unsafe  redis/maxmemory_policy: it may evict", "run would start."}, "", 0},
		{
			"mistyped",
			[]Check{found(unsafe)},
			[]string{"maxmemory"},
			[]string{"unsafe  redis/maxmemory_policy: it may evict", "warning accept: maxmemory: " + unmatched},
			"run would refuse to start: mend redis/maxmemory_policy, or list the name under accept", ExitRefused,
		},
		{
			"away",
			[]Check{found(), away("mysql"), away("kafka")},
			[]string{"clock"},
			[]string{
				"waiting mysql cannot be checked: dial tcp 127.0.0.1:1:; connection refused", "waiting kafka cannot be checked: dial tcp 127.0.0.1:1:; connection refused",
				"info    accept: clock: nothing that was found so far has this name, and not all could be asked",
			},
			"run would not start yet: it would wait for mysql and kafka", ExitFailed,
		},
		{
			"both",
			[]Check{found(unsafe), away("kafka")},
			nil,
			[]string{"unsafe  redis/maxmemory_policy: it may evict", "waiting kafka cannot be checked: dial tcp 127.0.0.1:1:; connection refused"},
			"run would refuse to start: mend redis/maxmemory_policy, or list the name under accept; it would also wait for kafka", ExitRefused,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := NewConfigCheck(func() (*Subject, error) {
				return &Subject{
					Process: "the test", Settings: new(struct{}), Accept: c.accept, Explain: func(io.Writer) error { return nil },
					Open: func(context.Context) ([]Check, func() error, error) {
						return c.checks, func() error { return nil }, nil
					},
				}, nil
			})
			var out, progress bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&progress)
			cmd.SetArgs([]string{})
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			err := cmd.ExecuteContext(t.Context())
			if err == nil && c.err != "" || err != nil && (err.Error() != c.err || Code(err) != c.code) {
				t.Errorf("%v, want %q and code %d", err, c.err, c.code)
			}
			_, below, _ := strings.Cut(out.String(), "\nChecks:\n")
			if got, want := below, strings.Join(c.lines, "\n")+"\n"; got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
			if want := "asking redis"; !strings.HasPrefix(progress.String(), want) || !strings.HasSuffix(progress.String(), ", for up to 15s ...\n") {
				t.Errorf("told %q meanwhile", &progress)
			}
		})
	}
	if got := list([]string{"redis", "mysql", "kafka"}); got != "redis, mysql and kafka" {
		t.Error(got)
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

// A system that hangs is told of soon, while it is still being asked, and one that refuses at once; neither holds up the
// others.
func TestSlow(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	count := func(text string) int { return logs.FilterMessage(text).Len() }
	until := func(ctx context.Context, cond func() bool) error {
		for !cond() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil
	}
	var once atomic.Bool
	hang := Check{System: "mysql", Where: "10.0.0.1:3306", Ask: func(ctx context.Context) ([]Finding, error) {
		return nil, until(ctx, func() bool {
			return count("mysql does not answer yet") > 0 && count("the work waits for redis") > 0 && count("it has no replicas") > 0
		})
	}}
	refuse := Check{System: "redis", Where: "10.0.0.2:6379", Ask: func(context.Context) ([]Finding, error) {
		if once.CompareAndSwap(false, true) {
			return nil, errors.New("connection refused")
		}
		return nil, nil
	}}
	well := Check{System: "kafka", Ask: func(context.Context) ([]Finding, error) {
		return []Finding{{store.Warning, "kafka", "replication", "it has no replicas"}}, nil
	}}
	h := &health{}
	w := &waiter{what: "the work", health: h, log: zap.New(core), patience: time.Second, errs: map[string]error{}}
	if err := w.await(t.Context(), []Check{hang, refuse, well}, nil); err != nil || h.err != nil {
		t.Fatal(err, h.err)
	}
	told := logs.FilterMessage("mysql does not answer yet").All()
	if len(told) != 1 || told[0].ContextMap()["at"] != "10.0.0.1:3306" || count("the work waits for redis") != 1 || count("redis does not answer yet") > 0 {
		t.Errorf("%+v", logs.All())
	}
}

// The end of the process ends the waiting.
func TestEndWhileWaiting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := &health{}
	err := Await(ctx, []Check{{System: "redis", Ask: func(context.Context) ([]Finding, error) {
		cancel()
		return nil, errors.New("connection refused")
	}}}, nil, "the work", h, zap.NewNop())
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
