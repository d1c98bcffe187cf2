// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/test/clitest"
)

const day = 24 * time.Hour

// authority signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T, until time.Time) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: clitest.Epoch.Add(-365 * day), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, &key.PublicKey)
	return a
}

// sign signs with the authority's certificate, or makes it.
func (a *authority) sign(template *x509.Certificate, public *ecdsa.PublicKey) *x509.Certificate {
	a.t.Helper()
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// serving makes a certificate for a name.
func (a *authority) serving(name string, from, until time.Time) []byte {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return encode(a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &key.PublicKey))
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// component is a pod of TopoDRA as the chart makes it.
func component(name, node string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "topodra-system", Name: "topodra-" + name + "-" + node, UID: types.UID("uid-" + name + node),
		Labels: map[string]string{labelName: ourName, labelComponent: name, labelVersion: "0.2.0"},
	}}
	p.Spec.NodeName, p.Spec.SchedulerName = node, corev1.DefaultSchedulerName
	p.Spec.Containers = []corev1.Container{{Name: name, Image: "registry.example/topodra-" + name + ":0.2.0"}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

func gpuNode(name string) corev1.Node {
	n := clitest.Node(name)
	n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "containerd://2.3.7"}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func policy(name string) (admissionv1.ValidatingAdmissionPolicy, admissionv1.ValidatingAdmissionPolicyBinding) {
	meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{labelName: ourName}}
	return admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta}, admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: meta,
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
}

func lease(namespace, name, holder string, renewed time.Time) coordinationv1.Lease {
	return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), RenewTime: &metav1.MicroTime{Time: renewed},
	}}
}

// healthy is a cluster where nothing is wrong: two GPU nodes, a job, everything installed.
func healthy(t *testing.T) *Snapshot {
	t.Helper()
	now := clitest.Epoch
	ca := newAuthority(t, now.Add(3650*day))
	service := &admissionv1.ServiceReference{Namespace: "topodra-system", Name: "topodra-webhook"}
	job := clitest.Pod("job", "cube", "two")
	s := &Snapshot{
		Now: now.Add(300 * time.Millisecond), ServerTime: now, GitVersion: "v1.37.2",
		Slices:  []resourceapi.ResourceSlice{clitest.Slice(t, "cube", "dgx1v_8xv100"), clitest.Slice(t, "pairs", "a30_4x_pairs")},
		Claims:  []resourceapi.ResourceClaim{clitest.Claim("two", 2, clitest.Allocated("cube", "g0,g3", 0, "job")), clitest.Claim("unused", 1)},
		Classes: clitest.Classes(),
		Nodes:   []corev1.Node{gpuNode("cube"), gpuNode("pairs"), clitest.Node("plain")},
		Pods:    []corev1.Pod{*job, component("driver", "cube"), component("driver", "pairs"), component("scheduler", "plain"), component("webhook", "plain")},
		Leases:  []coordinationv1.Lease{lease("topodra-system", "topodra-scheduler", "topodra-scheduler-a", now.Add(-5*time.Second)), lease(nodeLeases, "cube", "cube", now.Add(-8*time.Second))},
		Mutating: []admissionv1.MutatingWebhookConfiguration{{
			ObjectMeta: metav1.ObjectMeta{Name: "topodra-webhook"},
			Webhooks: []admissionv1.MutatingWebhook{{
				Name: "pods.topodra.dev", ClientConfig: admissionv1.WebhookClientConfig{Service: service, CABundle: encode(ca.cert)},
				FailurePolicy: new(admissionv1.Ignore),
			}},
		}},
		Endpoints: []discoveryv1.EndpointSlice{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "topodra-system", Labels: map[string]string{discoveryv1.LabelServiceName: "topodra-webhook"}},
			Endpoints:  []discoveryv1.Endpoint{{Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		}},
		Secrets: []corev1.Secret{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "topodra-system", Name: "topodra-webhook-tls"},
			Data:       map[string][]byte{corev1.TLSCertKey: ca.serving("topodra-webhook.topodra-system.svc", now.Add(-10*day), now.Add(80*day))},
		}},
		Unread: map[Resource]string{},
	}
	for _, wanted := range wantedPolicies {
		p, b := policy(wanted.name)
		s.Policies, s.Bindings = append(s.Policies, p), append(s.Bindings, b)
	}
	for _, q := range templateQuestions() {
		q.Kept = true
		s.Probes = append(s.Probes, q.Probe)
	}
	return s
}

// otherTaint taints every device of a slice as the driver does when another agent advertises the GPUs.
func otherTaint(s *resourceapi.ResourceSlice) {
	for i := range s.Spec.Devices {
		s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: api.DriverName + "/other-allocator", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
}
