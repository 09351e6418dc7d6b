package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/told"
)

// runFlags are the flags of `run`.
type runFlags struct {
	cfg      loadgen.Config
	user     string
	headers  []string
	users    string
	keyFile  string
	claim    string
	life     time.Duration
	quantity string
	told     string
	json     bool
}

func newRun() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Play the buyers of a sale and measure what they see",
		Long: `run sends requests to buy to a running gateway and shows what the buyers are told.

With --rate it is an open loop: requests are due at that rate whatever the gateway does, and each
one's latency counts from the moment it was due, so a stall of the gateway shows in full.
Without --rate it is a closed loop: --concurrency buyers at a time, each asking as soon as the
one before has an answer. It finds the highest throughput; its latencies are those of a client
that waits.

Buyers are named by --user, or listed in a file (--users: one a line, a token after a tab). What
proves who they are is in --header, where {user}, {n}, {token} and {jwt} stand for the buyer's
name, number, listed token, and a token signed with --jwt-key-file (HS256).

Only play against a deployment that is yours: the orders are real.`,
		Example: `  # 2,000 requests a second for 20 s, buyers proven by a signed cookie
  seckill-drill run --target http://127.0.0.1:8080 --activity 1001 --rate 2000 --duration 20s \
      --header 'Cookie: session={jwt}' --jwt-key-file jwt.key --told told.jsonl

  # 5,000 buyers, 200 at a time, each wants 1 to 3 units
  seckill-drill run --target http://127.0.0.1:8080 --activity 1001 --requests 5000 --concurrency 200 \
      --quantity 1-3 --users buyers.tsv --header 'Authorization: Bearer {token}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.cfg.Target, "target", "", "address of the gateway, such as http://127.0.0.1:8080")
	fl.StringVar(&f.cfg.Prefix, "prefix", "/seckill", "prefix of the sale's routes")
	fl.Int64Var(&f.cfg.Activity, "activity", 0, "id of the activity to buy in")
	fl.Float64Var(&f.cfg.Rate, "rate", 0, "requests per second (open loop)")
	fl.IntVar(&f.cfg.Concurrency, "concurrency", 64, "buyers at a time, without --rate (closed loop)")
	fl.IntVar(&f.cfg.MaxInFlight, "max-in-flight", 4096, "open requests at most, with --rate")
	fl.IntVar(&f.cfg.Requests, "requests", 0, "end after so many requests")
	fl.DurationVar(&f.cfg.Duration, "duration", 0, "end after so long")
	fl.IntVar(&f.cfg.Buyers, "buyers", 0, "number of buyers, who take turns (default: a new one for each request, or those of --users)")
	fl.IntVar(&f.cfg.First, "first", 0, "number of the first buyer")
	fl.StringVar(&f.quantity, "quantity", "1", "units in one order, or a range such as 1-3")
	fl.StringVar(&f.user, "user", "drill-{n}", "name of the buyer number {n}")
	fl.StringVar(&f.users, "users", "", "`FILE` with one buyer a line: name, tab, token")
	fl.StringArrayVar(&f.headers, "header", nil, "header of each request, \"Name: value\", with {user}, {n}, {token}, {jwt}; may be repeated")
	fl.StringVar(&f.keyFile, "jwt-key-file", "", "`FILE` with the key that {jwt} is signed with")
	fl.StringVar(&f.claim, "jwt-claim", "sub", "claim of {jwt} that names the buyer")
	fl.DurationVar(&f.life, "jwt-life", time.Hour, "how long {jwt} is valid")
	fl.DurationVar(&f.cfg.Timeout, "timeout", 10*time.Second, "of one request; what it cuts off may have bought all the same")
	fl.DurationVar(&f.cfg.Follow, "follow", 30*time.Second, "ask after accepted orders for so long at most, once all requests are sent; 0: not at all")
	fl.StringVar(&f.told, "told", "", "`FILE` to record what the buyers were told in, for check --told")
	fl.BoolVar(&f.json, "json", false, "print the figures as JSON")
	for _, name := range []string{"target", "activity"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the name is wrong
		}
	}
	return cmd
}

func (f *runFlags) run(ctx context.Context, out, progress io.Writer) (err error) {
	for flag, zero := range map[string]bool{
		"concurrency 0": f.cfg.Concurrency == 0, "max-in-flight 0": f.cfg.MaxInFlight == 0, "timeout 0s": f.cfg.Timeout == 0,
	} {
		if zero {
			return fmt.Errorf("--%s: want more than 0, or leave the flag out for its default", flag)
		}
	}
	if f.cfg.Requests <= 0 && f.cfg.Duration <= 0 {
		return errors.New("nothing would end the run: give --requests or --duration, more than 0")
	}
	c, err := newCrowd(f.user, f.headers, f.users, f.keyFile, f.claim, f.life)
	if err != nil {
		return err
	}
	f.cfg.Identify = c.buyer
	if f.cfg.Buyers == 0 {
		f.cfg.Buyers = len(c.listed)
	}
	if f.cfg.Quantity, err = quantities(f.quantity); err != nil {
		return err
	}
	if err := f.cfg.Validate(); err != nil { // before the record of a run before is overwritten
		return err
	}
	if f.told != "" {
		file, failed := os.Create(f.told)
		if failed != nil {
			return fmt.Errorf("--told: %w", failed)
		}
		f.cfg.Told = told.NewWriter(file)
		defer func() { err = errors.Join(err, f.cfg.Told.Close(), file.Close()) }()
	}
	stats := loadgen.NewStats()
	stop := show(progress, stats)
	err = loadgen.Run(ctx, f.cfg, stats)
	stop()
	if err != nil {
		return err
	}
	figures := stats.Figures()
	if f.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(figures)
	} else {
		err = figures.Write(out)
	}
	if err == nil && figures.Nobody() {
		err = fmt.Errorf("the gateway answered none of %s requests to %s: %s", loadgen.Thousands(figures.Answered), f.cfg.Target, figures.Causes())
	}
	return err
}

// quantities reads "2" or "1-3".
func quantities(s string) (func(int) int64, error) {
	low, high, ranged := strings.Cut(s, "-")
	if !ranged {
		high = low
	}
	a, err1 := strconv.ParseInt(low, 10, 64)
	b, err2 := strconv.ParseInt(high, 10, 64)
	if err1 != nil || err2 != nil || a < 1 || b < a {
		return nil, fmt.Errorf("--quantity %q: want a number, or a range such as 1-3", s)
	}
	return func(int) int64 { return a + rand.Int64N(b-a+1) }, nil
}

// show keeps a line of live figures on a terminal, or writes one every few seconds elsewhere, until the returned function
// is called.
func show(w io.Writer, stats *loadgen.Stats) (stop func()) {
	every, start, end := 5*time.Second, "", "\n"
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		every, start, end = 200*time.Millisecond, "\r\x1b[2K", ""
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f := stats.Figures()
				fmt.Fprint(w, start, f.Line(), end)
			case <-quit:
				fmt.Fprint(w, start)
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
