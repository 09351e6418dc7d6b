package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/landing"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/startup"
)

func newDLQ(load loader) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters and land them again",
		Long: `Dead letters are records of the orders topic that can never become orders: not readable, of an
unknown version, for an activity that MySQL does not have, for an item whose stock was missing or
no number for longer than landing.missing_wait, or refused by MySQL for good. The worker sets them
aside with the reason and goes on; where the order id can be read the buyer sees "failed" and the
units are free again. A dead letter is named by PARTITION/OFFSET.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newDLQList(load), newDLQShow(load), newDLQReplay(load))
	return cmd
}

// letterView is a dead letter as --json prints it.
type letterView struct {
	ID        string    `json:"id"`
	Time      time.Time `json:"time"`
	Error     string    `json:"error"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Key       string    `json:"key"`
	Value     string    `json:"value"`
	Truncated int       `json:"truncated,omitempty"`
}

func view(l *landing.Letter) letterView {
	return letterView{
		letterID(l), l.Time, l.Why, l.OriginTopic, l.OriginPartition, l.OriginOffset,
		string(l.Key), strings.ToValidUTF8(string(l.Value), "�"), l.Truncated,
	}
}

func letterID(l *landing.Letter) string { return fmt.Sprintf("%d/%d", l.Partition, l.Offset) }

func newDLQList(load loader) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all dead letters, a line each",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, err := load(needKafka)
			if err != nil {
				return err
			}
			admin, err := openLetters(cmd, s)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, admin.Close()) }()
			out := cmd.OutOrStdout()
			table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
			if !asJSON {
				fmt.Fprintln(table, "ID\tTIME\tORIGIN\tORDER\tERROR")
			}
			n := 0
			err = landing.ReadLetters(cmd.Context(), admin, s.Kafka.Topics.DeadLetters, func(l landing.Letter) error {
				n++
				if asJSON {
					return json.NewEncoder(out).Encode(view(&l))
				}
				id := "?"
				if o, _ := order.Decode(l.Value); o != nil && order.ValidID(o.ID) {
					id = o.ID
				}
				_, err := fmt.Fprintf(table, "%s\t%s\t%s/%d/%d\t%s\t%s\n", letterID(&l), l.Time.UTC().Format(time.RFC3339),
					l.OriginTopic, l.OriginPartition, l.OriginOffset, id, oneLine(l.Why))
				return err
			})
			if err != nil || asJSON {
				return err
			}
			if n == 0 {
				_, err := fmt.Fprintln(out, "no dead letters")
				return err
			}
			return table.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line, values included")
	return cmd
}

func newDLQShow(load loader) *cobra.Command {
	return &cobra.Command{
		Use:   "show PARTITION/OFFSET…",
		Short: "Show dead letters in full",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			letters, err := pick(cmd, load, args, needKafka)
			if err != nil {
				return err
			}
			for _, l := range letters {
				printLetter(cmd.OutOrStdout(), &l)
			}
			return nil
		},
	}
}

func printLetter(out io.Writer, l *landing.Letter) {
	fmt.Fprintf(out, "dead letter  %s\ntime         %s\nerror        %s\norigin       %s partition %d offset %d\nkey          %q\n",
		letterID(l), l.Time.UTC().Format(time.RFC3339Nano), oneLine(l.Why), l.OriginTopic, l.OriginPartition, l.OriginOffset, l.Key)
	if l.Truncated > 0 {
		fmt.Fprintf(out, "truncated    the first %d of %d bytes; the origin has all\n", len(l.Value), l.Truncated)
	}
	fmt.Fprintf(out, "value        %s\n\n", printable(l.Value))
}

func newDLQReplay(load loader) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "replay (PARTITION/OFFSET… | --all)",
		Short: "Land dead letters again where the order has no row",
		Long: `Replay lands dead letters once more, where the order has no row in MySQL. Most letters are past
that: where the order could be read the worker recorded it as FAILED, invalid, and its buyer was
told so. It stays failed, whatever is mended or added to MySQL since; the buyer orders again. What
can still land is an order without a row: one whose letter came by another way than the worker, and
one whose failure MySQL would not record either (a trigger or a CHECK of the shop's). Mend the cause
first. What is refused again stays in the topic and nothing is recorded of it, so that it may be
replayed once more.

It tells of each letter what became of it, and ends with 0 only if all of them are live orders now:
  live      the order is sold, by this replay or before
  dead      the order has a row that says it failed or was cancelled; it stays as it is
  refused   the order has no row and still cannot become one, and why

It is idempotent.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if all == (len(args) > 0) {
				return errors.New("name the dead letters to replay, or give --all, and not both")
			}
			need := []system{needRedis, needKafka, needMySQL}
			letters, err := pick(cmd, load, args, need...)
			if err != nil {
				return err
			}
			s, err := load(need...)
			if err != nil {
				return err
			}
			log, err := s.logger()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			p, err := s.open(ctx, log)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, p.close()) }()
			if len(letters) == 0 {
				return fmt.Errorf("there are no dead letters in %s: nothing was replayed", s.Kafka.Topics.DeadLetters)
			}
			return replayLetters(ctx, cmd.OutOrStdout(), p.lander(s, log), letters, s.Landing.MaxOrders)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every dead letter in the topic")
	return cmd
}

// replayLetters lands letters again, tells what became of each, and fails where one of them is not a live order now.
func replayLetters(ctx context.Context, out io.Writer, lander *landing.Lander, letters []landing.Letter, most int) error {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tNOW\tORDER\tWHY")
	live, dead := 0, 0
	for part := range slices.Chunk(letters, most) {
		fates, err := lander.LandAgain(ctx, part)
		if err != nil {
			return errors.Join(fmt.Errorf("dlq replay stopped before its end, run it again: %w", err), table.Flush())
		}
		for i, f := range fates {
			switch {
			case f.Live():
				live++
			case f.Dead():
				dead++
			}
			fmt.Fprintln(table, letterID(&part[i])+"\t"+fateLine(f))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	refused := len(letters) - live - dead
	fmt.Fprintf(out, "dead letters %d: live in mysql %d, dead %d, still refused %d\n", len(letters), live, dead, refused)
	if live == len(letters) {
		return nil
	}
	why := fmt.Sprintf("%d of %d dead letters have no live order", len(letters)-live, len(letters))
	if dead > 0 {
		why += "; a dead order stays dead, since its buyer was told so and may order again"
	}
	if refused > 0 {
		why += "; of what is refused nothing was recorded: where its cause can be mended, mend it and replay it again"
	}
	return errors.New(why)
}

// fateLine is what became of a letter, in the columns of replay. The order's row decides, where it has one.
func fateLine(f landing.Fate) string {
	id := cmp.Or(f.ID, "?")
	switch {
	case f.Live():
		return "live\t" + id + "\t" + oneLine(string(f.Row.Status))
	case f.Dead() && f.Row.Reason != "":
		return "dead\t" + id + "\t" + oneLine(string(f.Row.Status)+", "+f.Row.Reason)
	case f.Dead():
		return "dead\t" + id + "\t" + oneLine(string(f.Row.Status))
	}
	return "refused\t" + id + "\t" + oneLine(fmt.Sprint(f.Refused))
}

// openLetters is the way to the dead letters. It says on standard error when Kafka has to be waited for.
func openLetters(cmd *cobra.Command, s *settings) (*kafka.Admin, error) {
	admin, err := kafka.NewAdmin(s.Kafka, zap.NewNop())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	startup.TellWait(admin, cmd.ErrOrStderr())
	return admin, nil
}

// pick reads the named dead letters, all of them if none is named.
func pick(cmd *cobra.Command, load loader, names []string, need ...system) (letters []landing.Letter, err error) {
	want := make(map[string]bool, len(names))
	for _, n := range names {
		part, offset, ok := strings.Cut(n, "/")
		p, err1 := strconv.ParseInt(part, 10, 32)
		o, err2 := strconv.ParseInt(offset, 10, 64)
		if !ok || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%q is not PARTITION/OFFSET, as `dlq list` shows it", n)
		}
		want[fmt.Sprintf("%d/%d", p, o)] = true
	}
	s, err := load(need...)
	if err != nil {
		return nil, err
	}
	admin, err := openLetters(cmd, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	err = landing.ReadLetters(cmd.Context(), admin, s.Kafka.Topics.DeadLetters, func(l landing.Letter) error {
		if id := letterID(&l); len(names) == 0 || want[id] {
			delete(want, id)
			letters = append(letters, l)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id := range want {
		return nil, fmt.Errorf("there is no dead letter %s in %s", id, s.Kafka.Topics.DeadLetters)
	}
	return letters, nil
}

// oneLine and printable keep outside input from steering the terminal.
func oneLine(s string) string { return strings.Trim(strconv.QuoteToGraphic(s), `"`) }

func printable(b []byte) string {
	if json.Valid(b) && strings.IndexFunc(string(b), func(r rune) bool { return r < ' ' || r == 0x7f || r == '�' }) < 0 {
		return string(b)
	}
	return strconv.QuoteToGraphic(string(b))
}
