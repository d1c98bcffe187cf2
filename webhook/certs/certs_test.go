// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
)

const lifetime = 100 * 24 * time.Hour

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	terms = Terms{Hosts: []string{"topodra-webhook.topodra-system.svc", "127.0.0.1"}, Lifetime: lifetime}
)

// step is next, which must change something or not.
func step(t *testing.T, m *Material, now time.Time, reason string) *Material {
	t.Helper()
	renewed, why, err := next(m, &terms, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	if (reason == "") != (why == "") || !strings.Contains(why, reason) {
		t.Fatalf("at %s the reason is %q, want %q", now.Sub(start), why, reason)
	}
	return renewed
}

// leaf parses the serving certificate.
func leaf(t *testing.T, m *Material) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(m.Cert, m.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// trusts fails unless bundle vouches for what m serves.
func trusts(t *testing.T, bundle []byte, m *Material, now time.Time) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, host := range terms.Hosts {
		if _, err := leaf(t, m).Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: now}); err != nil {
			t.Fatalf("at %s: %v", now.Sub(start), err)
		}
	}
}

func TestFirstMaterial(t *testing.T) {
	t.Parallel()
	m := step(t, &Material{}, start, "unusable")
	trusts(t, m.Bundle, m, start)
	trusts(t, m.Bundle, m, start.Add(-4*time.Minute)) // a slow clock
	if got := leaf(t, m).NotAfter; !got.Equal(start.Add(lifetime)) {
		t.Errorf("it ends at %s", got)
	}
	again := step(t, m, start.Add(time.Hour), "")
	if !bytes.Equal(again.Cert, m.Cert) || !bytes.Equal(again.Bundle, m.Bundle) {
		t.Error("it changes for no reason")
	}
}

func TestUnusableMaterial(t *testing.T) {
	t.Parallel()
	m := step(t, &Material{}, start, "unusable")
	other := step(t, &Material{}, start, "unusable")
	for name, c := range map[string]struct {
		change func(*Material)
		reason string
	}{
		"no key":             {func(m *Material) { m.Key = nil }, "the certificate is unusable"},
		"another key":        {func(m *Material) { m.Key = other.Key }, "the certificate is unusable"},
		"garbage":            {func(m *Material) { m.Cert = []byte("garbage") }, "the certificate is unusable"},
		"no authority":       {func(m *Material) { m.CACert = nil }, "the authority is unusable"},
		"another authority":  {func(m *Material) { m.CACert = other.CACert }, "the authority is unusable"},
		"serving as CA":      {func(m *Material) { m.CACert, m.CAKey = m.Cert, m.Key }, "the authority is unusable"},
		"someone else's":     {func(m *Material) { m.Cert, m.Key = other.Cert, other.Key }, `the certificate is not good for "topodra-webhook.topodra-system.svc"`},
		"nothing is trusted": {func(m *Material) { m.Bundle = nil }, "what is trusted has changed"},
	} {
		broken := *m
		c.change(&broken)
		renewed, why, err := next(&broken, &terms, nil, start)
		if err != nil || !strings.Contains(why, c.reason) && name != "no authority" && name != "another authority" && name != "serving as CA" {
			t.Errorf("%s: the reason is %q, want %q (%v)", name, why, c.reason, err)
			continue
		}
		trusts(t, renewed.Bundle, renewed, start)
		step(t, renewed, start, "")
	}
	otherTerms := terms
	otherTerms.Hosts = append([]string{"another.example.com"}, terms.Hosts...)
	if _, why, err := next(m, &otherTerms, nil, start); err != nil || !strings.Contains(why, `not good for "another.example.com"`) {
		t.Errorf("another name: %q, %v", why, err)
	}
}

// TestYears lets two replicas look at different times for many years. Whatever one serves, the API server trusts, with what the
// other one has told it.
func TestYears(t *testing.T) {
	t.Parallel()
	m := step(t, &Material{}, start, "unusable")
	late := *m // what a replica serves that looks only now and then
	authorities, certificates, most := 1, 1, 0
	for now := start; now.Before(start.Add(17 * lifetime)); now = now.Add(24 * time.Hour) {
		renewed, _, err := next(m, &terms, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(renewed.CACert, m.CACert) {
			authorities++
		}
		if !bytes.Equal(renewed.Cert, m.Cert) {
			certificates++
			trusts(t, m.Bundle, renewed, now) // before anybody tells of it
		}
		m = renewed
		trusts(t, m.Bundle, m, now)
		trusts(t, m.Bundle, &late, now)
		if now.Sub(start)%(7*24*time.Hour) == 0 {
			late = *m
		}
		certs, err := cert.ParseCertsPEM(m.Bundle)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, len(certs))
	}
	// An authority lasts eight lifetimes, a certificate two thirds of one.
	if authorities != 3 || certificates < 24 || certificates > 29 || most != 2 {
		t.Errorf("%d authorities, %d certificates, at most %d trusted", authorities, certificates, most)
	}
}

func newKeeper(client *fake.Clientset, now *time.Time) *Keeper {
	return &Keeper{
		Client: client, Namespace: "topodra-system", Secret: "tls", Configurations: []string{"topodra-webhook"}, Terms: terms, Period: time.Millisecond,
		Now: func() time.Time { return *now },
	}
}

func configuration() *admissionv1.MutatingWebhookConfiguration {
	return &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "topodra-webhook"}, Webhooks: []admissionv1.MutatingWebhook{{Name: "a"}, {Name: "b"}},
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	now := start
	client := fake.NewClientset(configuration())
	k := newKeeper(client, &now)
	if _, err := k.GetCertificate(nil); err == nil || k.Ready() == nil || !k.Expiry().IsZero() {
		t.Error("there is a certificate before the first look")
	}
	other := newKeeper(client, &now)
	for _, keeper := range []*Keeper{k, other} {
		if err := keeper.Reconcile(t.Context()); err != nil || keeper.Ready() != nil {
			t.Fatal(err, keeper.Ready())
		}
	}
	if !k.Expiry().Equal(start.Add(lifetime)) || !other.served.Load().Leaf.Equal(k.served.Load().Leaf) {
		t.Error("the replicas serve different certificates")
	}
	told := func() []byte {
		config, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "topodra-webhook", metav1.GetOptions{})
		if err != nil || !bytes.Equal(config.Webhooks[0].ClientConfig.CABundle, config.Webhooks[1].ClientConfig.CABundle) {
			t.Fatal(config, err)
		}
		return config.Webhooks[0].ClientConfig.CABundle
	}
	if !bytes.Equal(told(), k.trusted) {
		t.Error("the API server was told something else")
	}
	writes := len(client.Actions())
	now = now.Add(time.Hour)
	if err := k.Reconcile(t.Context()); err != nil || len(client.Actions()) != writes+2 { // a look at each of both
		t.Errorf("it writes without need: %v %v", client.Actions()[writes:], err)
	}
	// The Secret gets lost: what the other replica still serves stays trusted.
	if err := client.CoreV1().Secrets("topodra-system").Delete(t.Context(), "tls", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(told())
	for _, keeper := range []*Keeper{k, other} {
		if _, err := keeper.served.Load().Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now}); err != nil {
			t.Error(err)
		}
	}
	now = now.Add(10 * lifetime)
	if k.Ready() == nil {
		t.Error("it is ready with a certificate that has ended")
	}
}

func TestReplicasRace(t *testing.T) {
	t.Parallel()
	now := start
	client := fake.NewClientset(configuration())
	var wait sync.WaitGroup
	keepers := make([]*Keeper, 6)
	for i := range keepers {
		keepers[i] = newKeeper(client, &now)
		wait.Go(func() {
			if err := keepers[i].Reconcile(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for _, k := range keepers {
		if !k.served.Load().Leaf.Equal(keepers[0].served.Load().Leaf) {
			t.Error("two replicas serve different certificates")
		}
	}
}

func TestConflictsAndErrors(t *testing.T) {
	t.Parallel()
	now := start
	client := fake.NewClientset(configuration())
	tries := 0
	client.PrependReactor("update", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		if tries++; tries < 3 {
			return true, nil, apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("it has changed"))
		}
		return false, nil, nil
	})
	k := newKeeper(client, &now)
	k.Configurations = append(k.Configurations, "missing")
	err := k.Reconcile(t.Context())
	if err == nil || !strings.Contains(err.Error(), `MutatingWebhookConfiguration "missing"`) || tries != 3 || k.Ready() != nil {
		t.Errorf("got %v after %d tries, ready: %v", err, tries, k.Ready())
	}
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no answer")
	})
	if err := k.Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), `keeping secret "tls" in namespace "topodra-system": no answer`) {
		t.Errorf("got %v", err)
	}
}

func TestStartEnds(t *testing.T) {
	t.Parallel()
	now := start
	k := newKeeper(fake.NewClientset(configuration()), &now)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := k.Start(ctx); err != nil || k.Ready() != nil || k.NeedLeaderElection() {
		t.Error(err, k.Ready())
	}
	secret, err := k.Client.CoreV1().Secrets("topodra-system").Get(t.Context(), "tls", metav1.GetOptions{})
	if err != nil || secret.Type != corev1.SecretTypeTLS {
		t.Error(secret, err)
	}
}
