package kafka

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// fake is a broker that gives the answers that no healthy real one gives.
type fake struct {
	*sarama.MockBroker
	t       *testing.T
	answers map[string]sarama.MockResponse // in force from the next call of produce on
}

const fakeTopic = "orders"

func newFake(t *testing.T, l net.Listener) *fake {
	t.Helper()
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	f := &fake{MockBroker: sarama.NewMockBrokerListener(t, 1, l), t: t}
	t.Cleanup(f.Close)
	f.answers = map[string]sarama.MockResponse{
		"ApiVersionsRequest":    sarama.NewMockApiVersionsResponse(t).SetApiKeys(nil), // no limits
		"MetadataRequest":       f.knows(),
		"InitProducerIDRequest": sarama.NewMockInitProducerIDResponse(t).SetProducerID(7),
	}
	f.produce(sarama.ErrNoError)
	return f
}

// knows is the metadata of one broker that leads the only partition.
func (f *fake) knows() *sarama.MockMetadataResponse {
	return sarama.NewMockMetadataResponse(f.t).SetBroker(f.Addr(), 1).SetLeader(fakeTopic, 0, 1)
}

func (f *fake) produce(code sarama.KError) {
	f.answers["ProduceRequest"] = sarama.NewMockProduceResponse(f.t).SetError(fakeTopic, 0, code)
	f.SetHandlerByMap(f.answers)
}

func (f *fake) config() Config {
	return Config{Brokers: []string{f.Addr()}, Topics: Topics{Orders: fakeTopic}}
}

func TestAnswersOfTheBroker(t *testing.T) {
	t.Parallel()
	for code, unsent := range map[sarama.KError]bool{
		sarama.ErrNotEnoughReplicas:            true,
		sarama.ErrTopicAuthorizationFailed:     true,
		sarama.ErrInvalidRecord:                true,
		sarama.ErrOutOfOrderSequenceNumber:     true, // never accepted, with whatever identity
		sarama.ErrNotEnoughReplicasAfterAppend: false,
		sarama.ErrRequestTimedOut:              false,
		sarama.ErrNotLeaderForPartition:        false,
		sarama.ErrKafkaStorageError:            false,
		sarama.ErrUnknown:                      false,
	} {
		t.Run(code.Error(), func(t *testing.T) {
			t.Parallel()
			f := newFake(t, nil)
			f.produce(code)
			opt := ProducerOptions{Budget: 3 * time.Second}
			p := newProducer(t, f.config(), opt)
			began := time.Now()
			_, err := p.Publish(t.Context(), newOrder(t, 1), nil)
			if err == nil || errors.Is(err, ErrNotSent) != unsent || !errors.Is(err, code) {
				t.Errorf("publish: %v, want not sent: %v", err, unsent)
			}
			inTime(t, time.Since(began), opt.Budget, err)
		})
	}
}

func TestTooFewReplicasStayUnhealthyUntilMoreCome(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.produce(sarama.ErrNotEnoughReplicas)
	p := newProducer(t, f.config(), ProducerOptions{Budget: 5 * time.Second})
	testenv.Eventually(t, 20*time.Second, "the broker's refusal", func() bool { // where the machine stalls an attempt ends without an answer
		_, err := p.Publish(t.Context(), newOrder(t, 1), nil)
		return errors.Is(err, ErrNotSent) && errors.Is(err, sarama.ErrNotEnoughReplicas)
	})
	testenv.Eventually(t, 10*time.Second, "unhealthy", func() bool { return p.HealthyFor(1) != nil })
	for began := time.Now(); time.Since(began) < time.Second; pause(t.Context(), 20*time.Millisecond) {
		if p.HealthyFor(1) == nil {
			t.Fatal("healthy again without more replicas: the next order would wait for nothing")
		}
	}
	f.answers["MetadataRequest"] = f.knows().SetBroker("127.0.0.1:1", 2) // it counts every broker as a replica in sync
	f.produce(sarama.ErrNoError)
	testenv.Eventually(t, 10*time.Second, "healthy", func() bool { return p.HealthyFor(1) == nil })
	if _, err := p.Publish(t.Context(), newOrder(t, 1), nil); err != nil {
		t.Errorf("publish: %v", err)
	}
}

func TestOnePartitionWithoutALeaderClosesNoOtherSale(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.answers["MetadataRequest"] = f.knows().SetLeader(fakeTopic, 1, 9) // a broker that is not there
	f.produce(sarama.ErrNoError)
	p := newProducer(t, f.config(), second)
	p.Start()
	testenv.Eventually(t, 5*time.Second, "unhealthy", func() bool { return p.Healthy() != nil })
	for activity := int64(1); activity < 20; activity++ {
		if dead := Partition(ActivityKey(activity), 2) == 1; (p.HealthyFor(activity) != nil) != dead {
			t.Errorf("activity %d: %v, its partition is dead: %v", activity, p.HealthyFor(activity), dead)
		}
	}
}

func TestTLSAndSASL(t *testing.T) {
	t.Parallel()
	cert, caFile := certificate(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(t, l)
	f.answers["SaslHandshakeRequest"] = sarama.NewMockSaslHandshakeResponse(t).SetEnabledMechanisms([]string{"PLAIN"})
	f.answers["SaslAuthenticateRequest"] = sarama.NewMockSaslAuthenticateResponse(t)
	f.produce(sarama.ErrNoError)
	cfg := f.config()
	cfg.TLS = TLS{Enable: true, CAFile: caFile}
	cfg.SASL = SASL{Mechanism: "PLAIN", User: "u", Password: "p"}
	p := newProducer(t, cfg, second)
	if _, err := p.Publish(t.Context(), newOrder(t, 1), nil); err != nil {
		t.Errorf("publish: %v", err)
	}
	var presented string
	for _, h := range f.History() {
		if r, ok := h.Request.(*sarama.SaslAuthenticateRequest); ok {
			presented = string(r.SaslAuthBytes)
		}
	}
	if presented != "\x00u\x00p" {
		t.Errorf("presented %q", presented)
	}

	f.answers["SaslAuthenticateRequest"] = sarama.NewMockSaslAuthenticateResponse(t).SetError(sarama.ErrSASLAuthenticationFailed)
	f.produce(sarama.ErrNoError)
	wrong := newProducer(t, cfg, second)
	if _, err := wrong.Publish(t.Context(), newOrder(t, 1), nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("with a wrong password: %v, want %v", err, ErrNotSent)
	}
	if err := wrong.Healthy(); !errors.Is(err, sarama.ErrSASLAuthenticationFailed) {
		t.Errorf("health with a wrong password: %v", err)
	}

	cfg.TLS.CAFile = ""
	distrustful := newProducer(t, cfg, second)
	distrustful.Start()
	testenv.Eventually(t, 5*time.Second, "an unknown authority is told", func() bool {
		err := distrustful.Healthy()
		return err != nil && strings.Contains(err.Error(), "certificate")
	})
}

// certificate makes a self-signed one for loopback and a file that trusts it.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, path
}
