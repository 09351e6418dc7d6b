package caddymodule

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

func init() {
	flags := flag.NewFlagSet("seckill", flag.ExitOnError)
	flags.String("address", "", "Address of the running Caddy's admin endpoint (default: "+caddy.DefaultAdminListen+")")
	flags.Bool("json", false, "Print what the admin endpoint answers, as JSON")
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "seckill",
		Usage: "[--address <interface>] [--json]",
		Short: "Shows the flash sales as a running gateway sees them",
		Long: `
Asks the admin endpoint of a running Caddy for its flash sales and prints them: state, whether they are sold out,
stock and reservations as of the gateway's last look at Redis, and whether Kafka takes orders.

It changes nothing. Sales are paused and resumed in MySQL: see seckill-syncer activity.
`,
		Flags: flags,
		Func: func(f caddycmd.Flags) (int, error) {
			if f.NArg() > 0 {
				return caddy.ExitCodeFailedStartup, fmt.Errorf("unexpected argument %q: there are only flags", f.Arg(0))
			}
			if err := showSales(os.Stdout, f.String("address"), f.Bool("json")); err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			return caddy.ExitCodeSuccess, nil
		},
	})
}

// showSales prints what the admin API says.
func showSales(w io.Writer, address string, asJSON bool) error {
	address, err := caddycmd.DetermineAdminAPIAddress(address, nil, "", "")
	if err != nil {
		return err
	}
	res, err := caddycmd.AdminAPIRequest(address, http.MethodGet, adminPath, nil, nil)
	if err != nil {
		if strings.Contains(err.Error(), "HTTP ") { // it answers, and says what is wrong
			return fmt.Errorf("the admin endpoint at %s: %w", address, err)
		}
		return fmt.Errorf("no admin endpoint answers at %s: is Caddy running, with `admin` not off? give its address with --address: %w",
			address, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("read the answer of the admin endpoint at %s: %w", address, err)
	}
	if asJSON {
		_, err = w.Write(raw)
		return err
	}
	var o overview
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("the admin endpoint at %s answers something else than a seckill gateway's: %w", address, err)
	}
	return o.print(w)
}

// print writes the overview for people.
func (o *overview) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(o.Activities) > 0 {
		fmt.Fprintln(t, "ACTIVITY\tITEM\tSTATE\tSOLD OUT\tSTOCK\tPENDING\tAVAILABLE\tVERSION\tLOOKED\tTITLE")
	}
	for _, a := range o.Activities {
		soldOut := "no"
		if a.SoldOut {
			soldOut = "yes"
		}
		// What has not been looked at is not zero.
		figures := []string{"-", "-", "-", "-", "never"}
		if a.AgeMs >= 0 {
			figures = []string{
				number(a.Stock), number(a.Pending), number(a.Available), number(a.Version),
				(time.Duration(a.AgeMs) * time.Millisecond).String() + " ago",
			}
		}
		title := strings.TrimSpace(a.Title)
		if a.Problem != "" {
			title = strings.TrimSpace(title + " (" + a.Problem + ")")
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\n", a.Activity, a.Item, a.State, soldOut, strings.Join(figures, "\t"), printable(title))
	}
	err := t.Flush()
	switch {
	case o.Unavailable:
		fmt.Fprintln(w, "sales: unavailable, redis does not answer or has no catalogue")
	case len(o.Activities) == 0:
		fmt.Fprintln(w, "sales: none")
	}
	kafka := "takes orders"
	if !o.Producer.Healthy {
		kafka = "does not take orders: " + o.Producer.Error
	}
	fmt.Fprintf(w, "kafka: %s; the oldest unacknowledged message is %.3f s old\n", kafka, o.Producer.OldestUnackedSec)
	_, last := fmt.Fprintf(w, "orders: %d in work, %d of them undecided; %d buyers wait for an outcome\n",
		o.Orders.InWork, o.Orders.Undecided, o.Orders.Waiting)
	return errors.Join(err, last)
}

func number(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// printable keeps a title from moving the terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
