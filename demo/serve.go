package main

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// The sales that follow the one that was played, for the person in front of the screen.
const (
	roundUnits = 20
	roundWait  = 60 * time.Second // time to open the page and log in
	roundLasts = 10 * time.Minute
)

// serve keeps a sale open on the shop's page until ctx ends or something dies.
func (d *demo) serve(ctx context.Context) error {
	for activity := int64(firstActivity + 1); ; activity++ {
		if err := d.open(ctx, activity, roundUnits, roundWait, roundLasts); err != nil {
			return err
		}
		if activity == firstActivity+1 {
			d.ui.line(`
   Now you: %s   (a sale of %d units opens in %.0f s; any name logs in)

   Look around meanwhile, in another terminal:
     . %s                     # where everything is
     %s status
     %s check --activity %d --units %d --told %s
   Logs are in %s. Ctrl-C ends it all.
`, d.url, roundUnits, roundWait.Seconds(), d.path("env"), d.path("bin/seckill-syncer"), d.path("bin/seckill-drill"), firstActivity,
				units+restock, d.path("run/told.jsonl"), d.path("run/logs"))
		}
		over := time.NewTimer(roundWait + roundLasts)
		select {
		case <-over.C:
		case err := <-d.procs.Died():
			over.Stop()
			return err
		case <-ctx.Done():
			over.Stop()
			return nil
		}
	}
}

// path is below the demo's folder, as short as it can be written.
func (d *demo) path(name string) string {
	full := filepath.Join(d.opt.base, name)
	wd, err := os.Getwd()
	if err != nil {
		return full
	}
	if rel, err := filepath.Rel(wd, full); err == nil && len(rel) < len(full) {
		return rel
	}
	return full
}
