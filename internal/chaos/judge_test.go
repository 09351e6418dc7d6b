package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/told"
)

// fine is a sale of 100 units: 60 sold, 10 reserved, of which 4 are owed to acknowledged orders.
func fine() *Sample {
	return &Sample{
		Units: 100, Live: 60, Stock: 40, Version: 9, Owed: 4,
		Redis: ledger.Snapshot{
			Loaded: true, SameServer: true, State: ledger.Open, Stock: 40, Version: 9, Pending: 10, LedgerLen: 8,
		},
	}
}

func TestASampleIsJudged(t *testing.T) {
	if got := fine().Broken(); got != nil {
		t.Errorf("a sale in order: %q", got)
	}
	for name, c := range map[string]struct {
		spoil func(*Sample)
		words string // empty: nothing is broken
	}{
		"a unit sold twice":          {func(s *Sample) { s.Live++ }, "I1: 61 units sold and 40 left of 100"},
		"pending below zero":         {func(s *Sample) { s.Redis.Pending = -1 }, "I5: -1 units pending"},
		"pending without a ledger":   {func(s *Sample) { s.Redis.LedgerLen = 0 }, "I5: 10 units pending in 0 reservations"},
		"pending forgotten":          {func(s *Sample) { s.Redis.Pending, s.Redis.LedgerLen = 0, 0 }, "I5: redis offers 40"},
		"stock of another version":   {func(s *Sample) { s.Redis.Stock = 41 }, "I5: at version 9 redis has stock 41 and mysql 40"},
		"redis offers what is gone":  {func(s *Sample) { s.Redis.Version, s.Redis.Stock = 8, 60 }, "I5: redis offers 50"},
		"redis is behind, and right": {func(s *Sample) { s.Redis.Version, s.Redis.Stock, s.Redis.Pending, s.Redis.LedgerLen = 8, 60, 30, 30 }, ""},
		"a decrease not yet known":   {func(s *Sample) { s.Redis.Version, s.Redis.Stock, s.Unseen = 8, 50, 10 }, ""},
		"closed meanwhile":           {func(s *Sample) { s.Redis.State, s.Redis.Stock = ledger.Recovering, 90 }, ""},
		"another server":             {func(s *Sample) { s.Redis.SameServer, s.Redis.Stock = false, 90 }, ""},
	} {
		s := fine()
		c.spoil(s)
		got := strings.Join(s.Broken(), "; ")
		if c.words == "" && got != "" || !strings.Contains(got, c.words) {
			t.Errorf("%s: %q, want %q", name, got, c.words)
		}
	}
}

// seconds after an arbitrary moment.
func at(s int) time.Time { return time.Unix(1_800_000_000, 0).Add(time.Duration(s) * time.Second) }

func TestTheImpactOfAFault(t *testing.T) {
	b := NewBook()
	ask := func(from, to int, http int, answer, id string) {
		b.Write(&Attempt{Record: told.Record{User: "u", HTTP: http, Answer: answer, OrderID: id}, Began: at(from), Ended: at(to)})
	}
	ask(0, 1, 202, "queued", "a")       // before
	ask(1, 1, 503, "unavailable", "")   // before
	ask(3, 4, 503, "unavailable", "")   // while it lasts
	ask(4, 9, 0, told.Unknown, "")      // across its end
	ask(5, 12, 202, "queued", "b")      // asked for while it lasted: proves nothing
	ask(11, 12, 503, "unavailable", "") // after its end, before it has recovered
	ask(11, 13, 202, "processing", "c")
	ask(12, 14, 202, "queued", "d")
	ask(20, 21, 503, "unavailable", "") // something else
	want := Impact{Recovered: true, After: 3 * time.Second, Refused: 2, Unanswered: 1}
	if got := b.Impact(at(2), at(10)); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := b.Impact(at(30), at(40)); got.Recovered {
		t.Errorf("recovered after the end: %+v", got)
	}
}

func TestAnswersThatNobodyMayHear(t *testing.T) {
	b := NewBook()
	for answer, http := range map[string]int{"sold_out": 409, "unavailable": 503, "not_found": 404, "ended": 410, told.Unknown: 502} {
		b.Write(&Attempt{Record: told.Record{User: answer, HTTP: http, Answer: answer}})
	}
	if got := b.Strange(); len(got) != 3 {
		t.Errorf("%q, want not_found, ended and the 502", got)
	}
}

func TestOrdersOnARedisThatForgot(t *testing.T) {
	b := NewBook()
	for id, began := range map[string]time.Time{"01a22b15-24d7-772c-8a12-59b0634f6655": at(3), "00000000-0000-7de8-bd50-bf55c9286902": at(3), "01a22b15-24d7-759b-9c1a-a95d41af6793": at(1)} {
		b.Write(&Attempt{Record: told.Record{User: id, HTTP: 202, Answer: "queued", OrderID: id}, Began: began, Ended: at(4)})
	}
	first, second := fine(), fine()
	for _, s := range []*Sample{first, second} {
		s.Redis.Exists, s.Redis.SameServer = true, false
	}
	first.Seen, second.At = at(2), at(5)
	if got := second.Amnesia(first, b); !strings.HasPrefix(got, "I5: 1 orders") {
		t.Errorf("%q, want one order", got)
	}
	if got := second.Amnesia(nil, b); got != "" {
		t.Errorf("without a sample before: %q", got)
	}
	second.Redis.Epoch = "another"
	if got := second.Amnesia(first, b); got != "" {
		t.Errorf("with a load in between: %q", got)
	}
}

func TestOrdersInAPause(t *testing.T) {
	b := NewBook()
	b.Write(&Attempt{Record: told.Record{User: "u", HTTP: 202, Answer: "queued", OrderID: "01a22b15-24d7-772c-8a12-59b0634f6655"}, Began: at(3), Ended: at(4)})
	first, second := fine(), fine()
	first.Redis.State, second.Redis.State = ledger.Paused, ledger.Paused
	first.Seen, second.At = at(2), at(5)
	if got := second.SoldInPause(first, b); !strings.HasPrefix(got, "I5: 1 orders") {
		t.Errorf("%q, want one order", got)
	}
	first.Redis.State = ledger.Open
	if got := second.SoldInPause(first, b); got != "" {
		t.Errorf("where the pause began in between: %q", got)
	}
	if got := second.SoldInPause(nil, b); got != "" {
		t.Errorf("without a sample before: %q", got)
	}
}

func TestAcknowledgedOrdersAreOwedUntilTheyLand(t *testing.T) {
	b := NewBook()
	for id, answer := range map[string]string{"a": "queued", "b": "queued", "c": "processing"} {
		b.Write(&Attempt{Record: told.Record{User: id, HTTP: 202, Answer: answer, OrderID: id, Quantity: 2}})
	}
	b.Landed([]string{"a"})
	if got := b.Open(); len(got) != 1 || got["b"] != 2 {
		t.Errorf("open orders %v, want b with 2 units", got)
	}
}

func TestTheTable(t *testing.T) {
	done := []Done{
		{Fault: Fault{Kind: "kill"}, Began: at(1), Impact: Impact{Recovered: true, After: 2 * time.Second, Refused: 5}},
		{Fault: Fault{Kind: "kill"}, Began: at(5), Impact: Impact{Recovered: true, After: 4 * time.Second, Unanswered: 1}, Lost: 1},
		{Fault: Fault{Kind: "force"}, Began: at(9), Leaked: 3},
	}
	got := Table(done)
	for _, want := range []string{
		"| kill | 2 | 4.0 s | 4.0 s | 5 | 1 | 1 | 0 | 0 |\n", "| force | 1 | – | never (1) | 0 | 0 | 0 | 0 | 3 |\n",
		"| **all** | 3 | 4.0 s | never (1) | 5 | 1 | 1 | 0 | 3 |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	if d := Blame(done, at(6)); d != &done[1] {
		t.Errorf("what happened at 6 is put down to %+v", d)
	}
	if d := Blame(done, at(0)); d != nil {
		t.Errorf("what happened before all is put down to %+v", d)
	}
}

func TestInsertKeepsTheRestOfTheDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	begin, end := markers("x")
	if err := os.WriteFile(path, []byte("before\n"+begin+"\nold\n"+end+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Insert(path, "x", "new\n"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if want := "before\n" + begin + "\nnew\n" + end + "\nafter\n"; err != nil || string(b) != want {
		t.Errorf("%q, %v; want %q", b, err, want)
	}
	if err := Insert(path, "y", "new"); err == nil {
		t.Error("a document without the markers is written to")
	}
}

// promised is an attempt of buyer u that was answered with an order.
func promised(id, answer string) *Attempt {
	return &Attempt{Record: told.Record{User: "u", HTTP: 202, Answer: answer, OrderID: id, Quantity: 1}}
}
