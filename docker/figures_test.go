package docker

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/landing"
	"github.com/seckillgate/seckillgate/internal/outbox"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/telemetry"
	"github.com/seckillgate/seckillgate/internal/unpaid"
)

// figures are those that the three processes export, each with its labels.
func figures(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{"up": {"job", "instance"}}
	// The worker's and the syncer's, as they register them.
	r := prometheus.NewRegistry()
	landing.NewMetrics(r)
	outbox.New(outbox.Config{}, nil, new(telemetry.Health), r, zap.NewNop())
	unpaid.New(unpaid.Config{}, nil, new(telemetry.Health), r, zap.NewNop())
	runner.NewMetrics(r)
	descs := make(chan *prometheus.Desc)
	go func() { r.Describe(descs); close(descs) }()
	desc := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)
	for d := range descs {
		m := desc.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("the library tells of a figure in another way: %s", d)
		}
		found[m[1]] = strings.FieldsFunc(m[2], func(c rune) bool { return c == ',' })
	}
	if len(found) < 30 {
		t.Fatalf("only %d figures of worker and syncer: %v", len(found), found)
	}
	// The gateway's are its package's own.
	files, err := filepath.Glob("../caddymodule/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	vec := regexp.MustCompile(`Namespace: "seckill", Name: "(\w+)",(?s:.*?)\n\t\}(?:, \[\]string\{(.*)\})?\)`)
	described := regexp.MustCompile(`describe\("(\w+)", "[^"]*"((?:, "\w+")*)\)`)
	word := regexp.MustCompile(`\w+`)
	for _, f := range files {
		text := read(t, f)
		for _, m := range slices.Concat(vec.FindAllStringSubmatch(text, -1), described.FindAllStringSubmatch(text, -1)) {
			found["seckill_"+m[1]] = word.FindAllString(m[2], -1)
		}
	}
	if got := found["seckill_requests_total"]; !slices.Equal(got, []string{"activity", "outcome"}) {
		t.Fatalf("the gateway's requests have labels %v: they are defined in another way", got)
	}
	return found
}

// expressions are all that Prometheus is asked, by where.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range rules(t) {
		all["alert "+r.Alert] = r.Expr
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/dashboards/seckillgate.json")), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			all["panel "+p.Title+", "+q.LegendFormat] = q.Expr
		}
	}
	return all
}

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	parse(t, "prometheus/alerts.yml", &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	selector = regexp.MustCompile(`\b(seckill_\w+|up)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`^(\w+)(=|!=|=~|!~)"[^"]*"$`)
	grouping = regexp.MustCompile(`\bby \(([\w, ]+)\)`)
	span     = regexp.MustCompile(`\[([^\]]*)\]`)
	call     = regexp.MustCompile(`(\w+) ?\(`)
	known    = []string{"sum", "max", "min", "by", "rate", "increase", "changes", "histogram_quantile", "or", "and", "unless"}
)

// TestFiguresExist: alerts and dashboards ask for figures that a process exports, by labels that they have, in expressions that hold
// together: a mistyped one would be silent for ever.
func TestFiguresExist(t *testing.T) {
	have := figures(t)
	for where, text := range expressions(t) {
		for _, p := range []string{"()", "[]", "{}"} {
			if strings.Count(text, p[:1]) != strings.Count(text, p[1:]) {
				t.Errorf("%s: %s: the %s do not pair", where, text, p)
			}
		}
		bare := quoted.ReplaceAllString(text, `""`)
		for _, m := range call.FindAllStringSubmatch(bare, -1) {
			if !slices.Contains(known, m[1]) {
				t.Errorf("%s: %s: %s is no function that this test knows", where, text, m[1])
			}
		}
		for _, m := range span.FindAllStringSubmatch(bare, -1) {
			if _, err := time.ParseDuration(m[1]); err != nil && m[1] != "$__rate_interval" && m[1] != "$__range" {
				t.Errorf("%s: %s: [%s] is no time", where, text, m[1])
			}
		}
		labels := []string{"le"}
		asked := selector.FindAllStringSubmatch(text, -1)
		if len(asked) == 0 {
			t.Errorf("%s: %s asks for no figure", where, text)
		}
		for _, m := range asked {
			name := m[1]
			if _, ok := have[name]; !ok {
				name = strings.TrimSuffix(name, "_bucket")
			}
			of, ok := have[name]
			if !ok {
				t.Errorf("%s: nothing exports %s", where, m[1])
				continue
			}
			labels = append(labels, of...)
			for part := range strings.SplitSeq(m[2], ",") {
				if part == "" {
					continue
				}
				if k := matcher.FindStringSubmatch(part); k == nil || !slices.Contains(of, k[1]) {
					t.Errorf("%s: %s has labels %v and is asked for by {%s}", where, name, of, part)
				}
			}
			grown := regexp.MustCompile(`(rate|increase)\(` + m[1] + `\b`).MatchString(text)
			if grows := strings.HasSuffix(m[1], "_total") || strings.HasSuffix(m[1], "_bucket"); grows != grown {
				t.Errorf("%s: %s: what only grows is asked for by rate or increase, and nothing else is", where, text)
			}
		}
		for _, m := range grouping.FindAllStringSubmatch(text, -1) {
			for label := range strings.SplitSeq(m[1], ", ") {
				if !slices.Contains(labels, label) {
					t.Errorf("%s: %s: no figure in it has the label %s", where, text, label)
				}
			}
		}
	}
}

// TestAlertsSayWhatToDo: each has its own name, a severity, a time that reads, and a summary that uses what the expression leaves.
func TestAlertsSayWhatToDo(t *testing.T) {
	seen := map[string]bool{}
	template := regexp.MustCompile(`\{\{ *([^}]*?) *\}\}`)
	for _, r := range rules(t) {
		if r.Alert == "" || seen[r.Alert] {
			t.Errorf("an alert without a name of its own: %+v", r)
		}
		seen[r.Alert] = true
		if s := r.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
			t.Errorf("%s: for: %v", r.Alert, err)
		}
		if !regexp.MustCompile(`(>|<|==|!=) [\d.]+( |$)|\) > sum`).MatchString(r.Expr) {
			t.Errorf("%s: %s compares with nothing, so it would always be on", r.Alert, r.Expr)
		}
		if r.Annotations["summary"] == "" {
			t.Errorf("%s: no summary", r.Alert)
		}
		for _, m := range template.FindAllStringSubmatch(r.Annotations["summary"], -1) {
			label, isLabel := strings.CutPrefix(m[1], "$labels.")
			left := strings.Contains(r.Expr, "by ("+label+")") || r.Expr == "up == 0"
			if m[1] != "$value" && (!isLabel || !left) {
				t.Errorf("%s: the summary has {{ %s }}, which the expression does not leave", r.Alert, m[1])
			}
		}
	}
	for _, want := range []string{"OutcomesNotTold", "OutcomesGivenUp", "LandingWaits", "NobodyLeads", "GatewayTakesNoOrders", "SharedLimitsAlone", "RepairsNeeded"} {
		if !seen[want] {
			t.Errorf("there is no alert %s", want)
		}
	}
}

// noise are figures that tell nobody anything by themselves during a sale.
var noise = []string{"up"}

// TestEveryFigureIsShown: what is worth exporting is worth a place on the dashboard or in an alert.
func TestEveryFigureIsShown(t *testing.T) {
	used := ""
	for _, text := range expressions(t) {
		used += text + "\n"
	}
	for name := range figures(t) {
		if !slices.Contains(noise, name) && !regexp.MustCompile(`\b`+name+`(_bucket)?\b`).MatchString(used) {
			t.Errorf("%s is neither on the dashboard nor in an alert", name)
		}
	}
}
