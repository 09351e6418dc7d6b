package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/told"
)

// acceptedWords are the answers that are no refusals.
var acceptedWords = []string{"queued", "processing", "confirmed"}

// answers words the difference between two counts: what was accepted, and the refusals, the most frequent first.
func answers(now, before map[string]int64) string {
	accepted := int64(0)
	refused := map[string]int64{}
	for k := range now {
		switch n := now[k] - before[k]; {
		case slices.Contains(acceptedWords, k):
			accepted += n
		case n > 0:
			refused[k] = n
		}
	}
	var parts []string
	if accepted > 0 {
		parts = append(parts, "accepted "+loadgen.Thousands(accepted))
	}
	for _, k := range byCount(refused) {
		parts = append(parts, k+" "+loadgen.Thousands(refused[k]))
	}
	return list(parts)
}

func byCount(m map[string]int64) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
}

// verdict says in plain words how the sale ended.
func verdict(w io.Writer, r *invariant.Report, f *loadgen.Figures) error {
	rule := "  " + strings.Repeat("─", 76)
	word := "every promise was kept"
	if !r.OK() {
		word = "A PROMISE WAS BROKEN, see below"
	}
	var b strings.Builder
	row := func(name, value, note string) {
		b.WriteString(strings.TrimRight(fmt.Sprintf("   %-14s %8s   %s", name, value, note), " ") + "\n")
	}
	t := &r.Totals
	fmt.Fprintf(&b, "%s\n   Verdict: %s\n\n", rule, word)
	row("on sale", loadgen.Thousands(t.Units), fmt.Sprintf("%d at first, %d restocked by SQL in the middle", units, restock))
	row("sold", loadgen.Thousands(t.SoldUnits), fmt.Sprintf("to %s buyers, one each", loadgen.Thousands(int64(t.SoldOrders))))
	row("oversold", loadgen.Thousands(t.Oversold), "")
	row("lost", loadgen.Thousands(int64(t.Lost)), "of the orders that buyers were told are accepted")
	equal := "Redis = MySQL"
	if t.Redis != t.Left || t.Pending != 0 {
		equal = "Redis ≠ MySQL"
	}
	row(equal, loadgen.Thousands(t.Left), fmt.Sprintf("left in MySQL, %d in Redis, %d still reserved", t.Redis, t.Pending))
	refused := map[string]int64{}
	total := int64(0)
	for k, n := range f.Answers {
		if !slices.Contains(acceptedWords, k) && k != told.Unknown {
			refused[k] = n
			total += n
		}
	}
	unknown := f.Answers[told.Unknown]
	row("answers", loadgen.Thousands(f.Answered-unknown), fmt.Sprintf("to %s buyers: %d of the answers are to early or double clicks",
		loadgen.Thousands(crowd), early+eager))
	row("refused", loadgen.Thousands(total), answers(refused, nil))
	if unknown > 0 {
		row("no answer", loadgen.Thousands(unknown), f.Causes())
	}
	fmt.Fprintf(&b, "   %-14s p50 %s, p99 %s   (accepted: p50 %s, p99 %s)\n\n", "answered in", loadgen.Short(f.All.P50),
		loadgen.Short(f.All.P99), loadgen.Short(f.Accepted.P50), loadgen.Short(f.Accepted.P99))
	if err := r.Write(&b); err != nil {
		return err
	}
	b.WriteString(rule + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}
