// Package docker holds no code. Its tests check what can be checked of the container files without an engine.
package docker

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parse(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// compose is what the tests look at.
type compose struct {
	Services map[string]struct {
		Image       string
		Build       *struct{ Context, Dockerfile string }
		Environment map[string]string
		DependsOn   any `yaml:"depends_on"`
		Ports       []string
		Volumes     []string
		Command     []string
	}
	Volumes map[string]any
}

func load(t *testing.T) compose {
	t.Helper()
	var c compose
	parse(t, "compose.yaml", &c)
	return c
}

func TestComposeHasTheWholeStack(t *testing.T) {
	c := load(t)
	for _, name := range []string{"redis", "mariadb", "kafka", "migrate", "worker", "syncer", "gateway", "prometheus", "grafana"} {
		s, ok := c.Services[name]
		if !ok {
			t.Errorf("compose.yaml lacks %s", name)
			continue
		}
		if s.Build == nil && !regexp.MustCompile(`:[v0-9][^:]*$`).MatchString(s.Image) {
			t.Errorf("%s: image %q has no version", name, s.Image)
		}
		if s.Build != nil {
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestKafkaIsTheTestedOne: the containers run the version that every test runs against.
func TestKafkaIsTheTestedOne(t *testing.T) {
	m := regexp.MustCompile(`<kafka.version>(.+)</kafka.version>`).FindStringSubmatch(read(t, "../scripts/kafka/pom.xml"))
	if m == nil {
		t.Fatal("scripts/kafka/pom.xml names no kafka.version")
	}
	if got, want := load(t).Services["kafka"].Image, "apache/kafka:"+m[1]; got != want {
		t.Errorf("compose.yaml runs %s, the tests %s", got, want)
	}
}

func TestComposeRefersToWhatThereIs(t *testing.T) {
	c := load(t)
	for name, s := range c.Services {
		switch on := s.DependsOn.(type) {
		case map[string]any:
			for other := range on {
				if _, ok := c.Services[other]; !ok {
					t.Errorf("%s depends on %s, which is not there", name, other)
				}
			}
		case []any:
			for _, other := range on {
				if _, ok := c.Services[other.(string)]; !ok {
					t.Errorf("%s depends on %s, which is not there", name, other)
				}
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(source, ".") {
				if _, err := os.Stat(source); err != nil {
					t.Errorf("%s mounts %v", name, err)
				}
			} else if _, ok := c.Volumes[source]; !ok {
				t.Errorf("%s mounts volume %s, which is not declared", name, source)
			}
		}
	}
}

func TestOnlyTheGatewayIsOpenToEverybody(t *testing.T) {
	for name, s := range load(t).Services {
		for _, p := range s.Ports {
			if name != "gateway" && !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond this machine", name, p)
			}
		}
	}
}

func TestTheGatewayHasNoDatabasePassword(t *testing.T) {
	if _, ok := load(t).Services["gateway"].Environment["SECKILL_MYSQL_DSN"]; ok {
		t.Error("the gateway gets the DSN of MySQL")
	}
}

func TestEveryVariableIsInTheExample(t *testing.T) {
	example := read(t, ".env.example")
	for _, m := range regexp.MustCompile(`\$\{([A-Z_]+)[:}]`).FindAllStringSubmatch(read(t, "compose.yaml"), -1) {
		if !strings.Contains(example, "\n"+m[1]+"=") {
			t.Errorf(".env.example lacks %s", m[1])
		}
	}
}

func TestRedisAndMariaDBAreSetUpAsTheProductNeeds(t *testing.T) {
	c := load(t)
	if !slices.Contains(c.Services["redis"].Command, "noeviction") {
		t.Error("redis may evict keys")
	}
	for _, want := range []string{"--binlog-format=ROW", "--log-bin-trust-function-creators=1"} {
		if !slices.Contains(c.Services["mariadb"].Command, want) {
			t.Errorf("mariadb lacks %s", want)
		}
	}
}

func TestDockerfilesCopyAndRunWhatThereIs(t *testing.T) {
	for name, pkg := range map[string]string{"gateway": "./cmd/caddy", "worker": "./worker", "syncer": "./syncer"} {
		text := read(t, name+".Dockerfile")
		if !strings.Contains(text, " "+pkg+"\n") {
			t.Errorf("%s.Dockerfile does not build %s", name, pkg)
		}
		if _, err := os.Stat(filepath.Join("..", pkg)); err != nil {
			t.Error(err)
		}
		if !strings.Contains(text, "\nUSER seckill\n") || !strings.Contains(text, "\nHEALTHCHECK ") {
			t.Errorf("%s.Dockerfile: want a user that is not root, and a health check", name)
		}
		for _, m := range regexp.MustCompile(`(?m)^COPY (docker/\S+)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPrometheusAndGrafanaParse(t *testing.T) {
	for _, path := range []string{
		"prometheus/prometheus.yml", "prometheus/alerts.yml", "grafana/provisioning/datasources/prometheus.yaml",
		"grafana/provisioning/dashboards/seckillgate.yaml",
	} {
		var v map[string]any
		parse(t, path, &v)
		if len(v) == 0 {
			t.Errorf("%s is empty", path)
		}
	}
	if !json.Valid([]byte(read(t, "grafana/dashboards/seckillgate.json"))) {
		t.Error("the dashboard is not JSON")
	}
}
