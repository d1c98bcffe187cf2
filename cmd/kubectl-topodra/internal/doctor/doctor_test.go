// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"flag"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/cmd/kubectl-topodra/internal/test/clitest"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// row is one thing that can be wrong.
type row struct {
	name  string
	spoil func(*testing.T, *Snapshot)
	want  []string // "level check | object | problem", without what is fine
	exit  int
}

// found are the findings that are not fine, as rows name them.
func found(r *Report) []string {
	var out []string
	for _, f := range r.Findings {
		if f.Level != OK {
			out = append(out, string(f.Level)+" "+f.Check+" | "+f.Object+" | "+f.Problem)
		}
	}
	return out
}

func run(t *testing.T, rows []row) {
	t.Helper()
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := healthy(t)
			c.spoil(t, s)
			r := Examine(s)
			if diff := cmp.Diff(c.want, found(r)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if r.Exit() != c.exit {
				t.Errorf("exit status %d, want %d", r.Exit(), c.exit)
			}
			for _, f := range r.Findings {
				if (f.Level == Error || f.Level == Warning) && (f.Why == "" || f.Mend == "") {
					t.Errorf("%q does not say why it matters or how it is mended", f.Problem)
				}
			}
		})
	}
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	r := Examine(healthy(t))
	if got := found(r); len(got) > 0 || r.Exit() != ExitFine || len(r.Findings) != len(checks()) {
		t.Errorf("%d findings, exit status %d, wrong: %q", len(r.Findings), r.Exit(), got)
	}
}

func TestAPI(t *testing.T) {
	t.Parallel()
	run(t, []row{
		{"old server", func(_ *testing.T, s *Snapshot) { s.GitVersion = "v1.36.4-gke.1" }, []string{"error version |  | the API server runs v1.36.4-gke.1, older than 1.37"}, 2},
		{"new server", func(_ *testing.T, s *Snapshot) { s.GitVersion = "v1.38.0" }, []string{"warning version |  | the API server runs v1.38.0, newer than 1.37"}, 1},
		{"odd server", func(_ *testing.T, s *Snapshot) { s.GitVersion = "?" }, []string{`warning version |  | the API server calls its version "?", which cannot be read`}, 1},
		{"dropped field", func(_ *testing.T, s *Snapshot) { s.Probes[0].Kept = false }, []string{"error fields | field " + "resourceclaims spec.devices.requests[].exactly.capacity | the API server drops it without a word"}, 2},
		{"optional field", func(_ *testing.T, s *Snapshot) { s.Probes[0].Kept, s.Probes[0].Optional = false, true }, []string{"info fields | field resourceclaims spec.devices.requests[].exactly.capacity | the API server drops it without a word"}, 0},
		{"no answer", func(_ *testing.T, s *Snapshot) { s.Probes[1].Unknown = "no right" }, []string{"not checked fields | field resourceclaims spec.devices.requests[].exactly.tolerations | no right"}, 0},
		{"no classes", func(_ *testing.T, s *Snapshot) { s.Classes = nil }, []string{"error classes | class gpu.topodra.dev | it does not exist", "info classes | class mig.topodra.dev | it does not exist"}, 2},
		{"MIG without class", func(_ *testing.T, s *Snapshot) {
			s.Classes = s.Classes[:1]
			clitest.Partition(&s.Slices[1], 3, 2, "2g.12gb", "12Gi")
		}, []string{"error classes | class mig.topodra.dev | it does not exist"}, 2},
		{"foreign class", func(_ *testing.T, s *Snapshot) {
			s.Classes[0].Spec.Selectors = nil
			other := *s.Classes[0].DeepCopy()
			other.Name = "gpu.nvidia.com"
			s.Classes = append(s.Classes, other)
		}, []string{"warning classes | class gpu.topodra.dev | no selector of it mentions the driver gpu.topodra.dev", "warning classes | resource nvidia.com/gpu | several device classes answer it: gpu.nvidia.com, gpu.topodra.dev"}, 1},
	})
}

func TestNodes(t *testing.T) {
	t.Parallel()
	runtime := func(text string) func(*testing.T, *Snapshot) {
		return func(_ *testing.T, s *Snapshot) { s.Nodes[0].Status.NodeInfo.ContainerRuntimeVersion = text }
	}
	run(t, []row{
		{"old kubelet", func(_ *testing.T, s *Snapshot) {
			s.Nodes[0].Status.NodeInfo.KubeletVersion, s.Nodes[1].Status.NodeInfo.KubeletVersion = "v1.33.1", "v1.36.0"
		}, []string{"error kubelets | node cube | its kubelet is v1.33.1, older than 1.34", "warning kubelets | node pairs | its kubelet is v1.36.0, older than 1.37"}, 2},
		{"containerd 1.6", runtime("containerd://1.6.33"), []string{"error runtime | node cube | its container runtime is containerd://1.6.33, older than containerd 1.7.0"}, 2},
		{"containerd 1.7", runtime("containerd://1.7.20"), []string{"warning runtime | node cube | its container runtime is containerd://1.7.20, which has CDI and NRI off unless they are configured"}, 1},
		{"cri-o", runtime("cri-o://1.31.2"), nil, 0},
		{"docker", runtime("docker://24.0.7"), []string{`warning runtime | node cube | its container runtime "docker://24.0.7" is none that is tested`}, 1},
		{"unreadable runtime", runtime("containerd://main"), []string{`warning runtime | node cube | the version of its container runtime "containerd://main" cannot be read`}, 1},
		{"simulated node", func(_ *testing.T, s *Snapshot) { s.Nodes[0].Status.NodeInfo = corev1.NodeSystemInfo{} }, nil, 0},
		{"nothing published", func(_ *testing.T, s *Snapshot) {
			s.Slices, s.Claims = nil, nil
			s.Pods = slices.DeleteFunc(s.Pods, func(p corev1.Pod) bool { return componentOf(&p) == componentDriver })
		}, []string{"error driver |  | no node publishes GPUs"}, 2},
		{"driver not ready", func(_ *testing.T, s *Snapshot) { s.Pods[1].Status.Conditions = nil }, []string{`error driver | pod topodra-system/topodra-driver-cube | this driver on node "cube" is not ready (Running)`}, 2},
		{"driver updating", func(_ *testing.T, s *Snapshot) {
			fresh := component("driver", "cube")
			fresh.Name, fresh.Status.Conditions = "topodra-driver-new", nil
			s.Pods = append(s.Pods, fresh)
		}, nil, 0},
		{"driver gone", func(_ *testing.T, s *Snapshot) { s.Pods = slices.Delete(s.Pods, 1, 2) }, []string{"error driver | node cube | it publishes GPUs, but no driver runs there"}, 2},
		{"node gone", func(_ *testing.T, s *Snapshot) { s.Nodes = s.Nodes[1:] }, []string{"error nodes | node cube | GPUs are published for it, but it does not exist"}, 2},
		{"silent driver", func(_ *testing.T, s *Snapshot) { s.Pods = append(s.Pods, component("driver", "plain")) }, []string{"error nodes | node plain | a driver runs there but publishes nothing"}, 2},
		{"unused GPU node", func(_ *testing.T, s *Snapshot) {
			s.Nodes[2].Labels["feature.node.kubernetes.io/pci-0302_10de.present"] = "true"
		}, []string{"warning nodes | node plain | its labels say that it has NVIDIA GPUs, but none are published"}, 1},
		{"unready node", func(_ *testing.T, s *Snapshot) { s.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown }, []string{"warning nodes | node cube | it is not ready"}, 1},
		{"old slice", func(_ *testing.T, s *Snapshot) {
			old := *s.Slices[0].DeepCopy()
			old.Name = "cube-0"
			s.Slices[0].Spec.Pool.Generation = 2
			s.Slices = append(s.Slices, old)
		}, []string{`warning pools | slice cube-0 | it is of generation 1 of pool "cube", which is at 2`}, 1},
		{"incomplete pool", func(_ *testing.T, s *Snapshot) { s.Slices[0].Spec.Pool.ResourceSliceCount = 2 }, []string{`error pools | node cube | pool "cube" is incomplete: 1 of 2 slices are there`}, 2},
	})
	for name, spoil := range map[string]func(*Snapshot){
		"the links of its GPUs cannot be read": func(s *Snapshot) { s.Slices[0].Spec.Devices[0].Attributes[api.AttrNVLinks] = clitest.Text("x?") },
		`device "g0" is published twice`: func(s *Snapshot) {
			s.Slices[0].Spec.Devices = append(s.Slices[0].Spec.Devices, s.Slices[0].Spec.Devices[0])
		},
	} {
		s := healthy(t)
		spoil(s)
		r := Examine(s)
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool {
			return f.Check == "pools" && f.Level == Error && strings.Contains(f.Problem, name)
		}) {
			t.Errorf("no finding with %q: %q", name, found(r))
		}
	}
}

func TestScheduling(t *testing.T) {
	t.Parallel()
	now := clitest.Epoch
	run(t, []row{
		{"dead leader", func(_ *testing.T, s *Snapshot) {
			s.Leases[0].Spec.RenewTime = &metav1.MicroTime{Time: now.Add(-time.Minute)}
		}, []string{`error scheduler | lease topodra-system/topodra-scheduler | its holder "topodra-scheduler-a" stopped renewing it 45s ago`}, 2},
		{"no leader", func(_ *testing.T, s *Snapshot) { s.Leases[0].Spec.HolderIdentity = nil }, []string{"error scheduler | lease topodra-system/topodra-scheduler | nobody holds it"}, 2},
		{"two leaders", func(_ *testing.T, s *Snapshot) {
			s.Leases = append(s.Leases, lease("kube-system", "topodra-scheduler", "b", now))
		}, []string{"error scheduler | leases kube-system/topodra-scheduler, topodra-system/topodra-scheduler | two installations of the scheduler are at work"}, 2},
		{"old lease of a former place", func(_ *testing.T, s *Snapshot) {
			s.Leases = append(s.Leases, lease("kube-system", "topodra-scheduler", "b", now.Add(-time.Hour)))
		}, nil, 0},
		{"without election", func(_ *testing.T, s *Snapshot) { s.Leases = s.Leases[1:] }, nil, 0},
		{"no sign of life", func(_ *testing.T, s *Snapshot) { s.Leases = nil; s.Pods = slices.Delete(s.Pods, 3, 4) }, []string{`warning scheduler |  | there is no lease "topodra-scheduler" in any namespace and no pod of the scheduler, so it cannot be told whether it runs`}, 1},
		{"pods not ready", func(_ *testing.T, s *Snapshot) { s.Leases = nil; s.Pods[3].Status.Conditions = nil }, []string{"error scheduler | pod topodra-system/topodra-scheduler-plain | its pods are not ready, and no lease says who is at work"}, 2},
		{"waiting", func(_ *testing.T, s *Snapshot) {
			for _, name := range []string{"old-1", "old-2", "new", "gated", "seen"} {
				p := clitest.Pod(name, "")
				p.CreationTimestamp = metav1.Time{Time: now.Add(-2 * time.Minute)}
				switch name {
				case "new":
					p.CreationTimestamp = metav1.Time{Time: now.Add(-time.Second)}
				case "gated":
					p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}}
				case "seen":
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}
				}
				s.Pods = append(s.Pods, *p)
			}
		}, []string{`error waiting | pod ns/old-1 | it named scheduler "topodra-scheduler" more than a minute ago and no scheduler has looked at it; such pods in all: 2`}, 2},
		{"two versions", func(_ *testing.T, s *Snapshot) {
			s.Pods[1].Labels = nil
			s.Pods[1].Spec.ServiceAccountName = "topodra-driver"
			s.Pods[1].Spec.Containers[0].Image = "registry.example:5000/topodra-driver:0.1.0"
		}, []string{"warning versions |  | several versions run at once: 0.1.0 (driver), 0.2.0 (driver, scheduler, webhook)"}, 1},
		{"no policies", func(_ *testing.T, s *Snapshot) { s.Policies, s.Bindings = nil, nil }, []string{
			"warning policies | policy topodra-allocation | it is not installed", "warning policies | policy topodra-device-status | it is not installed",
			"warning policies | policy topodra-resourceslices | it is not installed",
		}, 1},
		{"unbound policy", func(_ *testing.T, s *Snapshot) { s.Bindings = s.Bindings[1:] }, []string{"error policies | policy topodra-allocation | it is there, but no ValidatingAdmissionPolicyBinding puts it in force"}, 2},
		{"toothless policy", func(_ *testing.T, s *Snapshot) {
			s.Bindings[0].Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn, admissionv1.Audit}
		}, []string{"warning policies | policy topodra-allocation | its bindings warn or audit and do not deny"}, 1},
		{"doubted policy", func(_ *testing.T, s *Snapshot) {
			s.Policies[0].Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: []admissionv1.ExpressionWarning{{Warning: "ERROR: undefined field\n | more"}}}
		}, []string{"warning policies | policy topodra-allocation | the API server doubts an expression of it: ERROR: undefined field"}, 1},
	})
}

func TestBooking(t *testing.T) {
	t.Parallel()
	plugin := func(s *Snapshot) { s.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8") }
	add := func(c resourceapi.ResourceClaim, pods ...string) func(*testing.T, *Snapshot) {
		return func(_ *testing.T, s *Snapshot) {
			s.Claims = append(s.Claims, c)
			for _, p := range pods {
				s.Pods = append(s.Pods, *clitest.Pod(p, "cube"))
			}
		}
	}
	late := clitest.Claim("idle", 1, clitest.Allocated("pairs", "g0", -600))
	orphan := clitest.Claim("orphan", 1, clitest.Allocated("pairs", "g0", 0, "gone"))
	owned := clitest.Claim("owned", 1, clitest.Allocated("pairs", "g0", 0, "other"))
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "gone", UID: "uid-gone"}}
	stuck := clitest.Claim("stuck", 1, clitest.Allocated("pairs", "g0", 0, "p"))
	stuck.DeletionTimestamp = &metav1.Time{Time: clitest.Epoch.Add(-time.Hour)}
	admin := clitest.Claim("admin", 1, clitest.Allocated("cube", "g0", 0, "p"))
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	run(t, []row{
		{"device plugin", func(_ *testing.T, s *Snapshot) { plugin(s) }, []string{"error other allocators | node cube | another agent advertises its GPUs, too (nvidia.com/gpu: 8), and ours are not tainted"}, 2},
		{"device plugin, tainted", func(_ *testing.T, s *Snapshot) { plugin(s); otherTaint(&s.Slices[0]) }, []string{"warning other allocators | node cube | another agent advertises its GPUs, too (nvidia.com/gpu: 8); ours are tainted, so no new claim gets them"}, 1},
		{"device plugin elsewhere", func(_ *testing.T, s *Snapshot) {
			s.Nodes[2].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8")
		}, nil, 0},
		{"device plugin that advertises nothing", func(_ *testing.T, s *Snapshot) {
			s.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("0")
		}, nil, 0},
		{"default scheduler", func(_ *testing.T, s *Snapshot) {
			s.Claims = append(s.Claims, clitest.Claim("stock", 1, clitest.Allocated("pairs", "g0", 0, "stock")))
			p := clitest.Pod("stock", "pairs")
			p.Spec.SchedulerName = corev1.DefaultSchedulerName
			s.Pods = append(s.Pods, *p)
		}, []string{"error other schedulers | scheduler default-scheduler | it has placed 1 pod with our GPUs besides topodra-scheduler, such as ns/stock"}, 2},
		{"twice", add(clitest.Claim("thief", 1, clitest.Allocated("cube", "g3", 0, "p")), "p"), []string{"error bookings | device cube/g3 | 32Gi of its 16Gi of memory are booked: claims ns/thief, ns/two"}, 2},
		{"too many shares", func(t *testing.T, s *Snapshot) {
			add(clitest.Claim("a", 1, clitest.Share("8Gi", "60"), clitest.Allocated("pairs", "g0", 0, "p")), "p")(t, s)
			add(clitest.Claim("b", 1, clitest.Share("8Gi", "60"), clitest.Allocated("pairs", "g0", 0, "p")))(t, s)
		}, []string{"error bookings | device pairs/g0 | 120 of its 100 of cores are booked: claims ns/a, ns/b"}, 2},
		{"shares that fit", func(t *testing.T, s *Snapshot) {
			add(clitest.Claim("a", 1, clitest.Share("8Gi", "50"), clitest.Allocated("pairs", "g0", 0, "p")), "p")(t, s)
			add(clitest.Claim("b", 1, clitest.Share("8Gi", "50"), clitest.Allocated("pairs", "g0", 0, "p")))(t, s)
		}, nil, 0},
		{"exclusive twice", func(t *testing.T, s *Snapshot) {
			clitest.Partition(&s.Slices[1], 3, 2, "2g.12gb", "12Gi")
			add(clitest.Claim("a", 1, clitest.Allocated("pairs", "m3-0", 0, "p")), "p")(t, s)
			add(clitest.Claim("b", 1, clitest.Allocated("pairs", "m3-0", 0, "p")))(t, s)
		}, []string{"error bookings | device pairs/m3-0 | it is booked 2 times although it is for one claim at a time: claims ns/a, ns/b"}, 2},
		{"admin access", add(admin, "p"), nil, 0},
		{"unused", add(late), []string{"warning claims | claim ns/idle | it holds GPUs, but no pod uses it"}, 1},
		{"unused for a moment", add(clitest.Claim("fresh", 1, clitest.Allocated("pairs", "g0", -10))), nil, 0},
		{"orphan", add(orphan), []string{`warning claims | claim ns/orphan | it is reserved for pod "gone", which is gone`}, 1},
		{"owner gone", add(owned, "other"), []string{`warning claims | claim ns/owned | it belongs to pod "gone", which is gone`}, 1},
		{"stuck", add(stuck, "p"), []string{"warning claims | claim ns/stuck | it is being deleted since 1h0m0s"}, 1},
		{"device gone", add(clitest.Claim("c", 2, clitest.Allocated("cube", "g9,g8", 0, "p")), "p"), []string{"warning claims | claim ns/c | it holds devices that are not published any more: cube/g8, cube/g9"}, 1},
	})
}

func TestTrust(t *testing.T) {
	t.Parallel()
	now := clitest.Epoch
	const name = "topodra-webhook.topodra-system.svc"
	serving := func(name string, from, until time.Time) func(*testing.T, *Snapshot) {
		return func(t *testing.T, s *Snapshot) {
			ca := newAuthority(t, now.Add(3650*day))
			s.Mutating[0].Webhooks[0].ClientConfig.CABundle = encode(ca.cert)
			s.Secrets[0].Data[corev1.TLSCertKey] = ca.serving(name, from, until)
		}
	}
	run(t, []row{
		{"clock here", func(_ *testing.T, s *Snapshot) { s.Now = now.Add(-20 * time.Second) }, []string{"warning clock | this computer | its clock is -20s off the API server's"}, 1},
		{"clock far off", func(_ *testing.T, s *Snapshot) { s.Now = now.Add(time.Hour) }, []string{"error clock | this computer | its clock is 1h0m0s off the API server's"}, 2},
		{"clock of a node", func(_ *testing.T, s *Snapshot) {
			s.Leases = append(s.Leases, lease(nodeLeases, "pairs", "pairs", now.Add(30*time.Second)), lease("other", "x", "x", now.Add(time.Hour)))
		}, []string{"warning clock | node pairs | its clock is 30s ahead of the API server's"}, 1},
		{"clock of the leader", func(_ *testing.T, s *Snapshot) {
			s.Leases[0].Spec.RenewTime = &metav1.MicroTime{Time: now.Add(2 * time.Minute)}
		}, []string{"error clock | holder of lease topodra-system/topodra-scheduler | its clock is 2m0s ahead of the API server's"}, 2},
		{"no webhook", func(_ *testing.T, s *Snapshot) { s.Mutating = nil }, nil, 0},
		{"foreign webhook", func(_ *testing.T, s *Snapshot) {
			s.Validating = []admissionv1.ValidatingWebhookConfiguration{{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Webhooks: []admissionv1.ValidatingWebhook{{Name: "other"}}}}
		}, nil, 0},
		{"no authority", func(_ *testing.T, s *Snapshot) { s.Mutating[0].Webhooks[0].ClientConfig.CABundle = nil }, []string{"error webhook | webhook pods.topodra.dev | its caBundle cannot be used: there is no certificate in it"}, 2},
		{"expired", serving(name, now.Add(-100*day), now.Add(-time.Hour)), []string{"error webhook | webhook pods.topodra.dev, serving certificate | it expired 2026-11-30T11:00:00Z"}, 2},
		{"about to expire", serving(name, now.Add(-80*day), now.Add(2*day)), []string{"warning webhook | webhook pods.topodra.dev, serving certificate | it expires 2026-12-02T12:00:00Z"}, 1},
		{"short-lived, renewed in time", serving(name, now.Add(-time.Hour), now.Add(23*time.Hour)), nil, 0},
		{"expired authority", func(t *testing.T, s *Snapshot) {
			s.Mutating[0].Webhooks[0].ClientConfig.CABundle = encode(newAuthority(t, now.Add(-day)).cert)
			s.Secrets = nil
		}, []string{"error webhook | webhook pods.topodra.dev, certificate authority | it expired 2026-11-29T12:00:00Z", `not checked webhook | webhook pods.topodra.dev, serving certificate | no secret of namespace "topodra-system" with tls.crt is labelled app.kubernetes.io/name=topodra or named after the service`}, 2},
		{"wrong name", serving("other.svc", now.Add(-day), now.Add(90*day)), []string{"error webhook | webhook pods.topodra.dev, serving certificate | the API server will not accept it for topodra-webhook.topodra-system.svc: x509: certificate is valid for other.svc, not topodra-webhook.topodra-system.svc"}, 2},
		{"nobody answers", func(_ *testing.T, s *Snapshot) { s.Endpoints[0].Endpoints[0].Conditions.Ready = new(false) }, []string{"error webhook | webhook pods.topodra.dev | service topodra-system/topodra-webhook has no ready endpoint"}, 2},
		{"no secrets to read", func(_ *testing.T, s *Snapshot) { s.Secrets = nil; s.Unread[Secrets] = "no right to list secrets" }, []string{"not checked webhook | webhook pods.topodra.dev | its serving certificate: no right to list secrets"}, 0},
	})
}

// TestOtherAuthority: a certificate that another authority signed is not accepted.
func TestOtherAuthority(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	s.Mutating[0].Webhooks[0].ClientConfig.CABundle = encode(newAuthority(t, clitest.Epoch.Add(day*100)).cert)
	r := Examine(s)
	if r.Errors != 1 || !slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return strings.Contains(f.Problem, "signed by unknown authority") || strings.Contains(f.Problem, "verification error")
	}) {
		t.Errorf("findings %q", found(r))
	}
}

// TestNotChecked: without a right, every check that needs it says so, and nothing else changes.
func TestNotChecked(t *testing.T) {
	t.Parallel()
	for _, resource := range []Resource{Version, ServerClock, Slices, Claims, Classes, Nodes, Pods, Leases, Policies, Bindings, Mutating, Validating, Secrets, Endpoints} {
		s := healthy(t)
		s.Unread[resource] = "no right to list " + string(resource)
		switch resource {
		case Slices:
			s.Slices = nil
		case Claims:
			s.Claims = nil
		case Classes:
			s.Classes = nil
		case Nodes:
			s.Nodes = nil
		case Pods:
			s.Pods = nil
		case Leases:
			s.Leases = nil
		case Policies:
			s.Policies = nil
		case Bindings:
			s.Bindings = nil
		case Mutating, Validating:
			s.Mutating = nil
		case Secrets:
			s.Secrets = nil
		case Endpoints:
			s.Endpoints = nil
		case Version:
			s.GitVersion = ""
		case ServerClock:
			s.ServerTime = time.Time{}
		}
		r := Examine(s)
		if r.NotChecked == 0 || r.Errors+r.Warnings > 0 {
			t.Errorf("without %s: %q", resource, found(r))
		}
	}
}

// sick is a cluster with one of each.
func sick(t *testing.T) *Snapshot {
	t.Helper()
	s := healthy(t)
	s.GitVersion = "v1.38.1"
	s.Probes[0].Kept = false
	s.Unread[Leases] = "no right to list leases"
	s.Nodes[0].Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8")
	s.Claims = append(s.Claims, clitest.Claim("thief", 1, clitest.Allocated("cube", "g3", 0, "job")))
	return s
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*Snapshot{"healthy": healthy(t), "sick": sick(t)} {
		var text, doc strings.Builder
		if err := WriteText(&text, Examine(s)); err != nil {
			t.Fatal(err)
		}
		clitest.Golden(t, *update, name+".txt", text.String())
		if err := WriteJSON(&doc, Examine(s)); err != nil {
			t.Fatal(err)
		}
		clitest.Golden(t, *update, name+".json", doc.String())
		if !json.Valid([]byte(doc.String())) {
			t.Errorf("%s is no JSON", name)
		}
	}
}

// TestCommands: what is said to mend things looks like a command or a plain sentence, without placeholders that were forgotten.
func TestCommands(t *testing.T) {
	t.Parallel()
	broken := regexp.MustCompile(`%[!a-z]|\(MISSING\)|<nil>`)
	for _, f := range Examine(sick(t)).Findings {
		for _, text := range []string{f.Problem, f.Why, f.Mend} {
			if broken.MatchString(text) {
				t.Errorf("%q", text)
			}
		}
	}
}
