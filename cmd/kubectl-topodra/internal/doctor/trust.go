// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Skews of clocks. The Date header has whole seconds, and an answer takes a while.
const (
	skewWarning = 5 * time.Second
	skewError   = time.Minute
)

// nodeLeases is the namespace in which kubelets renew their leases.
const nodeLeases = "kube-node-lease"

func checkClocks(s *Snapshot) []Finding {
	var out []Finding
	if skew := s.Now.Sub(s.ServerTime); skew.Abs() > skewWarning {
		level := Warning
		if skew.Abs() > skewError {
			level = Error
		}
		out = append(out, Finding{
			Level: level, Object: "this computer", Problem: fmt.Sprintf("its clock is %s off the API server's", skew.Round(time.Second)),
			Why: "certificates and tokens look expired or not valid yet; ages that commands print are wrong", Mend: "timedatectl set-ntp true, here or on the control plane, whichever is wrong",
		})
	}
	if !s.has(Leases) {
		return append(out, Finding{Level: NotChecked, Object: "nodes", Problem: "clocks of nodes: " + s.Unread[Leases]})
	}
	for i := range s.Leases {
		l := &s.Leases[i]
		if l.Namespace != nodeLeases && !slices.Contains(s.leases(), l) || l.Spec.RenewTime == nil {
			continue
		}
		ahead := l.Spec.RenewTime.Sub(s.ServerTime)
		if ahead <= skewWarning {
			continue
		}
		level := Warning
		if ahead > skewError {
			level = Error
		}
		object := "node " + l.Name
		if l.Namespace != nodeLeases {
			object = "holder of lease " + l.Namespace + "/" + l.Name
		}
		out = append(out, Finding{
			Level: level, Object: object, Problem: fmt.Sprintf("its clock is %s ahead of the API server's", ahead.Round(time.Second)),
			Why: "it is noticed too late when it dies, and its certificates look wrong", Mend: "timedatectl set-ntp true, on that machine",
		})
	}
	return out
}

// Certificates are warned about when so little of their time is left.
const expiryWarning = 7 * 24 * time.Hour

// hook is one webhook of ours.
type hook struct {
	object string
	client admissionv1.WebhookClientConfig
	fail   bool // requests fail when it does not answer
}

// hooks are ours, in the order of names.
func (s *Snapshot) hooks() []hook {
	var out []hook
	fails := func(p *admissionv1.FailurePolicyType) bool { return p == nil || *p == admissionv1.Fail }
	for i := range s.Mutating {
		for _, w := range s.Mutating[i].Webhooks {
			if ours(&s.Mutating[i].ObjectMeta) {
				out = append(out, hook{"webhook " + w.Name, w.ClientConfig, fails(w.FailurePolicy)})
			}
		}
	}
	for i := range s.Validating {
		for _, w := range s.Validating[i].Webhooks {
			if ours(&s.Validating[i].ObjectMeta) {
				out = append(out, hook{"webhook " + w.Name, w.ClientConfig, fails(w.FailurePolicy)})
			}
		}
	}
	slices.SortFunc(out, func(a, b hook) int { return strings.Compare(a.object, b.object) })
	return out
}

func sayingWebhook(s *Snapshot) string {
	if len(s.hooks()) == 0 {
		return "no webhook is installed: pods have to name the scheduler and their claims themselves"
	}
	return "the webhook is there, and its certificates are good"
}

func checkWebhooks(s *Snapshot) []Finding {
	var out []Finding
	for _, h := range s.hooks() {
		effect := "pods that should get GPUs are created unchanged"
		if h.fail {
			effect = "no pod that it is for can be created"
		}
		const restart = "kubectl rollout restart -n topodra-system deployment/topodra-webhook"
		roots, err := parseCertificates(h.client.CABundle)
		if err != nil {
			out = append(out, Finding{Level: Error, Object: h.object, Problem: "its caBundle cannot be used: " + err.Error(), Why: effect, Mend: restart})
		}
		out = append(out, s.expiry(h.object+", certificate authority", roots, effect, restart)...)
		if h.client.Service == nil {
			continue
		}
		out = append(out, s.serving(h, roots, effect, restart)...)
		out = append(out, s.endpoints(h, effect)...)
	}
	return out
}

// parseCertificates reads PEM.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading a certificate: %w", err)
		}
		certificates = append(certificates, c)
	}
	if len(certificates) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return certificates, nil
}

// expiry looks at the one of the certificates that lasts longest.
func (s *Snapshot) expiry(object string, certificates []*x509.Certificate, effect, mend string) []Finding {
	if len(certificates) == 0 {
		return nil
	}
	last := slices.MaxFunc(certificates, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	left := last.NotAfter.Sub(s.clock())
	// Certificates that live for days are renewed when a third is left.
	soon := min(expiryWarning, last.NotAfter.Sub(last.NotBefore)/4)
	switch {
	case left <= 0:
		return []Finding{{Level: Error, Object: object, Problem: "it expired " + last.NotAfter.UTC().Format(time.RFC3339), Why: effect, Mend: mend}}
	case left < soon:
		return []Finding{{
			Level: Warning, Object: object, Problem: "it expires " + last.NotAfter.UTC().Format(time.RFC3339), Why: "it should have been renewed by now; then " + effect, Mend: mend,
		}}
	}
	return nil
}

// serving looks at the certificate of the webhook's own server.
func (s *Snapshot) serving(h hook, roots []*x509.Certificate, effect, mend string) []Finding {
	if !s.has(Secrets) {
		return []Finding{{Level: NotChecked, Object: h.object, Problem: "its serving certificate: " + s.Unread[Secrets]}}
	}
	secret := s.secretOf(h.client.Service)
	object := h.object + ", serving certificate"
	if secret == nil {
		return []Finding{{Level: NotChecked, Object: object, Problem: fmt.Sprintf("no secret of namespace %q with tls.crt is labelled %s=%s or named after the service", h.client.Service.Namespace, labelName, ourName)}}
	}
	chain, err := parseCertificates(secret.Data[corev1.TLSCertKey])
	if err != nil {
		return []Finding{{Level: Error, Object: object, Problem: fmt.Sprintf("secret %s/%s: %v", secret.Namespace, secret.Name, err), Why: effect, Mend: mend}}
	}
	if out := s.expiry(object, chain[:1], effect, mend); len(out) > 0 {
		return out
	}
	if len(roots) == 0 {
		return nil
	}
	pool, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range roots {
		pool.AddCert(c)
	}
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	name := h.client.Service.Name + "." + h.client.Service.Namespace + ".svc"
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: intermediates, DNSName: name, CurrentTime: s.clock()}); err != nil {
		return []Finding{{
			Level: Error, Object: object, Problem: fmt.Sprintf("the API server will not accept it for %s: %v", name, err), Why: effect, Mend: mend,
		}}
	}
	return nil
}

// secretOf returns the secret with the certificate of a service.
func (s *Snapshot) secretOf(service *admissionv1.ServiceReference) *corev1.Secret {
	for i := range s.Secrets {
		secret := &s.Secrets[i]
		if secret.Namespace == service.Namespace && len(secret.Data[corev1.TLSCertKey]) > 0 &&
			(secret.Labels[labelName] == ourName || strings.HasPrefix(secret.Name, service.Name)) {
			return secret
		}
	}
	return nil
}

// endpoints looks for somebody who answers.
func (s *Snapshot) endpoints(h hook, effect string) []Finding {
	if !s.has(Endpoints) {
		return []Finding{{Level: NotChecked, Object: h.object, Problem: "its endpoints: " + s.Unread[Endpoints]}}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Namespace != h.client.Service.Namespace || e.Labels[discoveryv1.LabelServiceName] != h.client.Service.Name {
			continue
		}
		for _, endpoint := range e.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				return nil
			}
		}
	}
	return []Finding{{
		Level: Error, Object: h.object, Problem: fmt.Sprintf("service %s/%s has no ready endpoint", h.client.Service.Namespace, h.client.Service.Name), Why: effect,
		Mend: "kubectl get pods -n " + h.client.Service.Namespace + " -l app.kubernetes.io/component=webhook",
	}}
}
