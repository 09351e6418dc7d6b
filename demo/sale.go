package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/demo/shop"
	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/told"
)

// The sale that the demo plays.
const (
	firstActivity = 1001
	units         = 100
	restock       = 50
	crowd         = 2000
	early         = 100 // of the crowd try before the sale opens, and come again
	eager         = 40  // of the crowd click twice
)

var flask = shop.Product{
	Name: "晨光不锈钢保温杯 500ml", NameEN: "Daybreak steel flask, 500 ml",
	About:   "316 不锈钢内胆，保温 12 小时，一手可握。",
	AboutEN: "316 steel inside, keeps tea hot for twelve hours.",
	Price:   990, Before: 12900,
}

// open creates an activity with an item of its own, as an operator does, and waits until the gateway knows it.
func (d *demo) open(ctx context.Context, activity, stock int64, starts, lasts time.Duration) error {
	id := strconv.FormatInt(activity, 10)
	out, err := d.command(ctx, d.bin.syncer, "activity", "create", "--id", id, "--item", id, "--stock", strconv.FormatInt(stock, 10),
		"--title", flask.Name, "--starts", "+"+starts.String(), "--ends", "+"+lasts.String(), "--wait", "30s")
	if err != nil {
		return fmt.Errorf("create activity %d: %w: %s", activity, err, out)
	}
	product := flask
	product.Units = stock
	d.setSale(shop.Sale{Activity: activity, Product: product})
	return d.await(ctx, activity, 20*time.Second, "the gateway knows the activity", func(v saleView) bool { return v.State != "" })
}

// saleView is the gateway's public view of a sale.
type saleView struct {
	State    string `json:"state"`
	StartsAt int64  `json:"starts_at"`
	SoldOut  bool   `json:"sold_out"`
}

func (d *demo) view(ctx context.Context, activity int64) (v saleView, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/seckill/%d", d.url, activity), nil)
	if err != nil {
		return v, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return v, fmt.Errorf("the gateway answers %s", resp.Status)
	}
	return v, json.NewDecoder(resp.Body).Decode(&v)
}

// await polls the gateway's view until it is as wanted.
func (d *demo) await(ctx context.Context, activity int64, within time.Duration, what string, ok func(saleView) bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		v, err := d.view(ctx, activity)
		if err == nil && ok(v) {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-d.procs.Died():
			return err
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %s (last: %+v, %w)", within, what, v, err)
		}
	}
}

// wave is a part of the crowd that comes at one time.
type wave struct {
	name             string
	first, n, clicks int
	rate             float64 // 0: a few at a time
}

// playSale has the crowd buy, restocks in the middle, and judges the end.
func (d *demo) playSale(ctx context.Context) (*invariant.Report, error) {
	d.ui.line("\n  %s buyers, %d units at first; %d more come in the middle by plain SQL", loadgen.Thousands(crowd), units, restock)
	if err := d.open(ctx, firstActivity, units, 3*time.Second, time.Hour); err != nil {
		return nil, err
	}
	var record bytes.Buffer
	w := told.NewWriter(&record)
	stats := loadgen.NewStats()
	play := func(v wave) error { return d.wave(ctx, v, w, stats) }

	if err := play(wave{"impatient", crowd - early, early, 1, 0}); err != nil {
		return nil, err
	}
	if err := d.await(ctx, firstActivity, 20*time.Second, "the sale opens", func(v saleView) bool { return v.State == "open" }); err != nil {
		return nil, err
	}
	for _, v := range []wave{{"click twice", 0, eager, 2, 0}, {"rush", eager, crowd/2 - eager, 1, 1500}} {
		if err := play(v); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	// What an ERP or an operator would do: the shop's own table, no API of this product.
	if _, err := d.db.ExecContext(ctx, "UPDATE inventory SET stock = stock + ? WHERE item_id = ?", restock, firstActivity); err != nil {
		return nil, fmt.Errorf("restock: %w", err)
	}
	if err := d.await(ctx, firstActivity, 20*time.Second, "the restock reaches the gateway", func(v saleView) bool { return !v.SoldOut }); err != nil {
		return nil, err
	}
	d.ui.done("restock", fmt.Sprintf("UPDATE inventory SET stock = stock + %d; on sale again %s later", restock, loadgen.Short(time.Since(began))))
	if err := play(wave{"second rush", crowd / 2, crowd / 2, 1, 1500}); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return d.judge(ctx, record.Bytes(), stats)
}

// wave plays one part of the crowd, with live figures.
func (d *demo) wave(ctx context.Context, v wave, w *told.Writer, all *loadgen.Stats) error {
	before := all.Figures()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(150 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f := all.Figures()
				d.ui.progress("sale", fmt.Sprintf("%s: %s of %s requests, %s", v.name, loadgen.Thousands(f.Answered-before.Answered),
					loadgen.Thousands(int64(v.n*v.clicks)), answers(f.Answers, before.Answers)))
			case <-quit:
				return
			}
		}
	}()
	err := loadgen.Run(ctx, loadgen.Config{
		Target: d.url, Activity: firstActivity, Identify: d.buyer, First: v.first, Buyers: v.n, Requests: v.n * v.clicks,
		Rate: v.rate, Concurrency: 16, MaxInFlight: 512, Follow: 20 * time.Second, Told: w,
	}, all)
	close(quit)
	<-done
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	f := all.Figures()
	d.ui.done("sale", fmt.Sprintf("%-12s %s", v.name, answers(f.Answers, before.Answers)))
	return nil
}

func (d *demo) buyer(n int) (loadgen.Buyer, error) {
	user := fmt.Sprintf("buyer-%04d", n)
	token, err := shop.Token(d.key, user, time.Now())
	if err != nil {
		return loadgen.Buyer{}, fmt.Errorf("log in %s: %w", user, err)
	}
	return loadgen.Buyer{User: user, Header: http.Header{"Cookie": {shop.Cookie + "=" + token}}}, nil
}

// judge prints the verdict. It is that of `seckill-drill check`.
func (d *demo) judge(ctx context.Context, record []byte, stats *loadgen.Stats) (*invariant.Report, error) {
	d.ui.progress("check", "waiting until all work is done")
	file := filepath.Join(d.dir, "told.jsonl")
	if err := os.WriteFile(file, record, 0o600); err != nil {
		return nil, fmt.Errorf("keep what buyers were told: %w", err)
	}
	var records []told.Record
	err := told.Read(bytes.NewReader(record), firstActivity, func(r *told.Record) error {
		records = append(records, *r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	opt := invariant.Options{Units: units + restock, ToldRecords: true}
	report, err := invariant.Check(ctx, d.src, firstActivity, records, opt, 60*time.Second)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	f := stats.Figures()
	if err := verdict(&b, report, &f); err != nil {
		return nil, err
	}
	d.ui.line("\n%s", strings.TrimRight(b.String(), "\n"))
	return report, nil
}
