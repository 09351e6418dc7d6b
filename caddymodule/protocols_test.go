package caddymodule

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// secure runs Caddy like run, over TLS and with HTTP/1.1, HTTP/2 and HTTP/3, and gives its address and who is to be trusted.
func secure(t *testing.T, f *fake, lines ...string) (addr string, trust *tls.Config) {
	t.Helper()
	was := newBackend
	newBackend = func(settings, *zap.Logger) (backend, error) { return f, nil }
	t.Cleanup(func() { newBackend = was })
	certFile, keyFile, roots := certificate(t)
	addr = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	load(t, "{\nauto_https off\nstorage_check off\nstorage_clean_interval off\nservers {\nprotocols h1 h2 h3\n}\nseckill {\nredis 127.0.0.1:6379\nkafka 127.0.0.1:9092\n}\n}\n"+
		"https://"+addr+" {\nbind 127.0.0.1\ntls "+certFile+" "+keyFile+"\n"+strings.Join(lines, "\n")+"\n}\n")
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	return addr, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
}

// certificate makes one for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (certFile, keyFile string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for file, content := range map[string][]byte{
		certFile: certPEM, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return certFile, keyFile, roots
}

// eachHTTP gives a client for each version of HTTP.
func eachHTTP(t *testing.T, trust *tls.Config) map[string]*http.Client {
	t.Helper()
	one := new(http.Protocols)
	one.SetHTTP1(true)
	two := new(http.Protocols)
	two.SetHTTP2(true)
	first := &http.Transport{TLSClientConfig: trust.Clone(), Protocols: one}
	second := &http.Transport{TLSClientConfig: trust.Clone(), Protocols: two}
	third := &http3.Transport{TLSClientConfig: trust.Clone()}
	t.Cleanup(func() {
		first.CloseIdleConnections()
		second.CloseIdleConnections()
		_ = third.Close()
	})
	return map[string]*http.Client{"HTTP/1.1": {Transport: first}, "HTTP/2.0": {Transport: second}, "HTTP/3.0": {Transport: third}}
}

// The same contract over HTTP/1.1, HTTP/2 and HTTP/3: status, body, headers, and what the edge is asked for.
func TestEveryHTTPVersionBehavesAlike(t *testing.T) {
	f := newFake()
	f.outcome = func(r edge.Request) edge.Outcome {
		switch r.User {
		case "again":
			return edge.Outcome{HTTP: 409, Reason: edge.AlreadyOrdered, OrderID: anOrder}
		case "hasty":
			return edge.Outcome{HTTP: 429, Reason: edge.TooFrequent, RetryAfter: 4200 * time.Millisecond}
		case "unknown":
			return edge.Outcome{HTTP: 202, OrderID: anOrder, Status: order.Processing}
		}
		return edge.Outcome{HTTP: 202, OrderID: anOrder, Status: order.Queued}
	}
	boundBodies(t, 500*time.Millisecond)
	addr, trust := secure(t, f, "seckill_rate_limit /limited token_bucket 1/h key {header.X-Key}", shortcutLines)
	clients := eachHTTP(t, trust)
	url := "/seckill/1/orders/" + anOrder
	for _, client := range clients { // use the bucket of this key up
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+"/limited", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Key", "over")
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	type seen struct {
		Status                                          int
		Body                                            string
		ContentType, CacheControl, Allow, Limit, Policy string
		RetryAfter                                      bool
		Asked                                           []edge.Request
	}
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		headers            []string
		trickle            bool
	}{
		"accepted":          {method: "POST", path: "/seckill/1/orders", body: `{"quantity":2,"extra":{"a":1}}`, headers: []string{"X-User", "bob", "Idempotency-Key", "k"}, status: 202},
		"processing":        {method: "POST", path: "/seckill/1/orders", headers: []string{"X-User", "unknown"}, status: 202},
		"already ordered":   {method: "POST", path: "/seckill/1/orders", headers: []string{"X-User", "again"}, status: 409},
		"too frequent":      {method: "POST", path: "/seckill/1/orders", headers: []string{"X-User", "hasty"}, status: 429},
		"nobody":            {method: "POST", path: "/seckill/1/orders", status: 401},
		"blank user":        {method: "POST", path: "/seckill/1/orders", headers: []string{"X-User", "b\tb"}, status: 400},
		"sold out":          {method: "POST", path: "/seckill/2/orders", status: 409},
		"sold out, en":      {method: "POST", path: "/seckill/2/orders", headers: []string{"Accept-Language", "en"}, status: 409},
		"not started":       {method: "POST", path: "/seckill/3/orders", status: 403},
		"ended":             {method: "POST", path: "/seckill/4/orders", status: 410},
		"paused":            {method: "POST", path: "/seckill/5/orders", status: 503},
		"no such sale":      {method: "POST", path: "/seckill/6/orders", status: 404},
		"broken body":       {method: "POST", path: "/seckill/1/orders", body: `{"quantity":`, headers: []string{"X-User", "bob"}, status: 400},
		"named twice":       {method: "POST", path: "/seckill/1/orders", body: `{"quantity":1,"quantity":2}`, headers: []string{"X-User", "bob"}, status: 400},
		"not UTF-8":         {method: "POST", path: "/seckill/1/orders", body: "{\"x\":\"\xff\"}", headers: []string{"X-User", "bob"}, status: 400},
		"coded body":        {method: "POST", path: "/seckill/1/orders", body: "{}", headers: []string{"X-User", "bob", "Content-Encoding", "br"}, status: 400},
		"early, it is said": {method: "POST", path: "/seckill/1/orders", headers: []string{"X-User", "bob", "Early-Data", "1"}, status: 425},
		"activity 01":       {method: "POST", path: "/seckill/01/orders", headers: []string{"X-User", "bob"}, status: 400},
		"activity +1":       {method: "POST", path: "/seckill/+1/orders", headers: []string{"X-User", "bob"}, status: 400},
		"activity 2^63":     {method: "POST", path: "/seckill/9223372036854775808/orders", headers: []string{"X-User", "bob"}, status: 400},
		"percent, a slash":  {method: "POST", path: "/seckill/1%2Forders", headers: []string{"X-User", "bob"}, status: 404},
		"two slashes":       {method: "POST", path: "/seckill//1/orders", headers: []string{"X-User", "bob"}, status: 404},
		"before it":         {method: "POST", path: "//seckill/1/orders", headers: []string{"X-User", "bob"}, status: 299},
		"long key":          {method: "POST", path: "/seckill/1/orders", headers: []string{"X-User", "bob", "Idempotency-Key", strings.Repeat("k", 65)}, status: 400},
		"head of a call":    {method: "HEAD", path: "/seckill/1/orders", headers: []string{"X-User", "bob"}, status: 405},
		"E82 large body":    {method: "POST", path: "/seckill/1/orders", body: strings.Repeat(" ", 4097), headers: []string{"X-User", "bob"}, status: 413},
		"E82 slow body":     {method: "POST", path: "/seckill/1/orders", headers: []string{"X-User", "bob"}, trickle: true, status: 408},
		"status":            {method: "GET", path: url, headers: []string{"X-User", "bob"}, status: 200},
		"head":              {method: "HEAD", path: url, headers: []string{"X-User", "bob"}, status: 200},
		"another's order":   {method: "GET", path: url, headers: []string{"X-User", "eve"}, status: 404},
		"mine":              {method: "GET", path: "/seckill/1/orders/mine", headers: []string{"X-User", "bob"}, status: 200},
		"the sale":          {method: "GET", path: "/seckill/1", status: 200},
		"wrong method":      {method: "DELETE", path: url, status: 405},
		"preflight":         {method: "OPTIONS", path: "/seckill/1/orders", status: 299},
		"rate limit":        {method: "GET", path: "/limited", headers: []string{"X-Key", "{version}"}, status: 299},
		"rate limit, over":  {method: "GET", path: "/limited", headers: []string{"X-Key", "over"}, status: 429},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]seen{}
			for version, client := range clients {
				var body io.Reader = http.NoBody
				if c.body != "" {
					body = strings.NewReader(c.body)
				}
				if c.trickle {
					pipe, feed := io.Pipe()
					defer pipe.Close()
					go func() {
						for {
							if _, err := feed.Write([]byte(" ")); err != nil {
								return
							}
							<-time.After(50 * time.Millisecond)
						}
					}()
					body = pipe
				}
				r, err := http.NewRequestWithContext(t.Context(), c.method, "https://"+addr+c.path, body)
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(c.headers); i += 2 {
					r.Header.Set(c.headers[i], strings.ReplaceAll(c.headers[i+1], "{version}", version))
				}
				res, err := client.Do(r)
				if err != nil {
					t.Fatalf("%s: %v", version, err)
				}
				raw, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || res.Proto != version {
					t.Fatalf("%s: answered over %s, %v", version, res.Proto, err)
				}
				orders, _ := f.calls()
				h := res.Header
				all[version] = seen{
					Status: res.StatusCode, Body: string(raw), ContentType: h.Get("Content-Type"), CacheControl: h.Get("Cache-Control"),
					Allow: h.Get("Allow"), Limit: h.Get("RateLimit"), Policy: h.Get("RateLimit-Policy"), RetryAfter: h.Get("Retry-After") != "",
					Asked: orders,
				}
			}
			for version, got := range all {
				if got.Status != c.status || !reflect.DeepEqual(got, all["HTTP/1.1"]) {
					t.Errorf("%s: got %+v\nHTTP/1.1: %+v\nwant %d", version, got, all["HTTP/1.1"], c.status)
				}
			}
		})
	}
}

// A stream and a long-poll reach their end over every version.
func TestEveryHTTPVersionStreams(t *testing.T) {
	f := newFake()
	addr, trust := secure(t, f, "seckill {\n user {header.X-User}\n heartbeat 50ms\n}")
	at := "https://" + addr + "/seckill/1/orders/" + anOrder
	for version, client := range eachHTTP(t, trust) {
		get := func(url string, headers ...string) *http.Response {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-User", "bob")
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			res, err := client.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", version, err)
			}
			if res.Proto != version {
				t.Fatalf("%s: answered over %s", version, res.Proto)
			}
			return res
		}
		res := get(at, "Accept", "text/event-stream")
		lines := bufio.NewScanner(res.Body)
		var got []string
		for lines.Scan() {
			line := lines.Text()
			if line == ": no news" && (len(got) == 0 || got[len(got)-1] != line) {
				got = append(got, line)
				f.steps <- confirmed() // news after the first heartbeat
			} else if line != "" && line != ": no news" {
				got = append(got, line)
			}
		}
		_ = res.Body.Close()
		if want := []string{"retry: 2000", "data: " + queuedJSON, ": no news", "id: final", "data: " + confirmedJSON}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the stream says %q", version, got)
		}
		f.steps <- confirmed()
		res = get(at + "?wait=20s")
		raw, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		<-f.waits
		if string(raw) != confirmedJSON+"\n" {
			t.Errorf("%s: the long-poll says %s", version, raw)
		}
	}
}

// witness is a handler for tests that tells of each request when it comes and when it has been answered.
type witness struct{}

var witnessed = make(chan bool, 10) // whether the handshake was complete

func (witness) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.seckill_test_witness", New: func() caddy.Module { return new(witness) }}
}

func (witness) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	complete := r.TLS.HandshakeComplete
	err := next.ServeHTTP(w, r)
	witnessed <- complete
	return err
}

func init() {
	caddy.RegisterModule(witness{})
	httpcaddyfile.RegisterHandlerDirective("seckill_test_witness", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return witness{}, nil
	})
}

// deafConn is a client's socket on which nothing arrives until it is told to listen.
type deafConn struct {
	net.PacketConn
	listen chan struct{}
	once   sync.Once
}

func (c *deafConn) hear() { c.once.Do(func() { close(c.listen) }) }

func (c *deafConn) ReadFrom(b []byte) (int, net.Addr, error) {
	<-c.listen
	return c.PacketConn.ReadFrom(b)
}

func (c *deafConn) Close() error { c.hear(); return c.PacketConn.Close() }

// E81: a purchase in the early data of a real QUIC connection is refused before it has any effect, and so is every replay; the same
// request after the handshake is taken. A look at an order does no harm in early data.
func TestE81EarlyDataOverHTTP3(t *testing.T) {
	t.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") // a socket that can be deaf has no such buffer
	f := newFake()
	addr, trust := secure(t, f, "route {\nseckill_test_witness\nseckill {\n user {header.X-User}\n user_window 5s\n}\n}")
	trust.ClientSessionCache = tls.NewLRUClientSessionCache(10)
	trust.NextProtos = []string{http3.NextProtoH3}

	ask := func(early bool, method, path string) response {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		udp, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conn := &deafConn{PacketConn: udp, listen: make(chan struct{})}
		defer conn.Close()
		if !early {
			conn.hear()
		}
		tr := &quic.Transport{Conn: conn}
		defer tr.Close()
		to, err := net.ResolveUDPAddr("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conf := trust.Clone()
		conf.ServerName = "127.0.0.1"
		c, err := tr.DialEarly(ctx, to, conf, &quic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.CloseWithError(0, "") }()
		if !early {
			<-c.HandshakeComplete()
		}
		str, err := (&http3.Transport{}).NewClientConn(c).OpenRequestStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(ctx, method, "https://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", "bob")
		if err := str.SendRequestHeader(r); err != nil {
			t.Fatal(err)
		}
		_ = str.Close()
		select {
		case complete := <-witnessed:
			if complete == early {
				t.Fatalf("early data: %v, but the server's handshake is complete: %v", early, complete)
			}
		case <-ctx.Done():
			t.Fatal("the request did not arrive")
		}
		conn.hear()
		res, err := str.ReadResponse()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		<-c.HandshakeComplete()
		if early && !c.ConnectionState().Used0RTT {
			t.Fatal("the server did not take early data")
		}
		return response{res.StatusCode, res.Header, string(raw)}
	}

	if res := ask(false, "GET", "/seckill/1"); res.status != 200 { // and with it comes the ticket for early data
		t.Fatalf("got %d %s", res.status, res.body)
	}
	for range 10 {
		if res := ask(true, "POST", "/seckill/1/orders"); res.status != 425 || !strings.Contains(res.body, `"too_early"`) {
			t.Fatalf("got %d %s", res.status, res.body)
		}
	}
	if orders, windows := f.calls(); len(orders)+len(windows) > 0 {
		t.Errorf("early data had effects: %+v %q", orders, windows)
	}
	if res := ask(true, "GET", "/seckill/1/orders/"+anOrder); res.status != 200 {
		t.Errorf("a look in early data: got %d %s", res.status, res.body)
	}
	if res := ask(false, "POST", "/seckill/1/orders"); res.status != 202 {
		t.Errorf("after the handshake: got %d %s", res.status, res.body)
	}
	if orders, _ := f.calls(); len(orders) != 1 {
		t.Errorf("the edge was asked for %+v", orders)
	}
}
