// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/test/cluster"
)

// finding is what a program would read.
type finding struct{ Check, Level, Object, Problem, Why, Mend string }

// doctor runs the command as a user and demands an exit status. It returns the findings by "level check".
func (e *env) doctor(t *testing.T, user string, status int) map[string][]finding {
	t.Helper()
	r := e.run(t, user, "doctor", "-o", "json")
	var report struct{ Findings []finding }
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v in %s\n%s", err, r.stdout, r.stderr)
	}
	if r.status != status || r.stderr != "" {
		t.Errorf("exit status %d, want %d; standard error %q\n%s", r.status, status, r.stderr, r.stdout)
	}
	found := map[string][]finding{}
	for _, f := range report.Findings {
		found[f.Level+" "+f.Check] = append(found[f.Level+" "+f.Check], f)
	}
	return found
}

// TestDoctor looks at one cluster while it is mended and broken. The steps build on each other.
func TestDoctor(t *testing.T) {
	e := newEnv(t, "")
	found := e.doctor(t, cluster.UserAdmin, 2)
	if f := found["error driver"]; len(f) != 1 || f[0].Problem != "no node publishes GPUs" {
		t.Errorf("an empty cluster: %+v", found)
	}
	e.addNode(t, "pairs", "a30_4x_pairs")
	if _, err := e.AddNode(t.Context(), cluster.NodeOptions{Name: "plain"}); err != nil {
		t.Fatal(err)
	}
	e.startOurs(t)
	e.apply(t, claimYAML("two", "{deviceClassName: gpu.topodra.dev, count: 2}", "")+podYAML("two", "", "{name: gpus, resourceClaimName: two}"))
	e.awaitRunning(t, "two")

	// No policies and no lease yet: warnings. Nothing that a dry run made is left.
	found = e.doctor(t, cluster.UserAdmin, 1)
	for _, check := range []string{"ok version", "ok fields", "ok classes", "ok driver", "ok pools", "ok bookings", "ok claims", "ok other schedulers", "ok clock", "ok webhook", "warning scheduler", "warning policies"} {
		if len(found[check]) == 0 {
			t.Errorf("no finding %q in %+v", check, found)
		}
	}
	e.noTraces(t)

	if err := e.Apply(t.Context(), []string{filepath.Join(e.root, "manifests", "policies")}); err != nil {
		t.Fatal(err)
	}
	now := metav1.NowMicro()
	e.apply(t, "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: topodra-scheduler, namespace: topodra-system}\nspec: {holderIdentity: a, leaseDurationSeconds: 600, renewTime: "+now.UTC().Format("2006-01-02T15:04:05.000000Z")+"}\n")
	found = e.doctor(t, cluster.UserAdmin, 0)
	if len(found["ok policies"]) != 1 || len(found["ok scheduler"]) != 1 || !strings.Contains(found["ok scheduler"][0].Problem, "a is at work") {
		t.Errorf("with policies and a lease: %+v", found)
	}
	r := e.run(t, cluster.UserAdmin, "doctor")
	if r.failed || !strings.HasSuffix(r.stdout, "\n0 errors, 0 warnings, 0 not checked\n") {
		t.Errorf("failed %v, %s\n%s", r.failed, r.stderr, r.stdout)
	}
	e.broken(t)

	// Without rights nothing is checked but what everybody may see, and that is no error.
	found = e.doctor(t, nobody, 0)
	for _, check := range []string{"ok version", "not checked fields", "not checked pools", "not checked policies", "not checked claims", "not checked waiting"} {
		if len(found[check]) == 0 {
			t.Errorf("no finding %q for a user without rights: %+v", check, found)
		}
	}
	if r := e.run(t, cluster.UserAdmin, "doctor", "everything"); r.status != 2 || r.stdout != "" {
		t.Errorf("exit status %d, %q after a wrong argument", r.status, r.stdout)
	}
	if r := e.run(t, cluster.UserAdmin, "doctor", "--server", "http://127.0.0.1:1"); r.status != 2 || r.stdout != "" || !strings.HasPrefix(r.stderr, "error: asking the API server for its version") {
		t.Errorf("exit status %d, %q, %q when nobody answers", r.status, r.stdout, r.stderr)
	}
}

// broken breaks the cluster and looks for the findings.
func (e *env) broken(t *testing.T) {
	t.Helper()
	node, err := e.Client().CoreV1().Nodes().Get(t.Context(), "pairs", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("4")
	node.Status.Capacity["nvidia.com/gpu"] = resource.MustParse("4")
	if _, err := e.Client().CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z")
	e.apply(t, "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: topodra-scheduler, namespace: topodra-system}\nspec: {holderIdentity: a, leaseDurationSeconds: 15, renewTime: "+past+"}\n")
	if err := e.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "topodra-allocation", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// A slice for a node that is not there, as an administrator could leave it behind: the policy about slices is gone, too.
	if err := e.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "topodra-resourceslices", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return e.ApplyYAML(t.Context(), []byte(sliced)) == nil })
	found := e.doctor(t, cluster.UserAdmin, 2)
	for check, problem := range map[string]string{
		"error other allocators": "another agent advertises its GPUs, too (nvidia.com/gpu: 4), and ours are not tainted",
		"error scheduler":        `its holder "a" stopped renewing it`,
		"error policies":         "no ValidatingAdmissionPolicyBinding puts it in force",
		"error nodes":            "GPUs are published for it, but it does not exist",
	} {
		if f := found[check]; len(f) == 0 || !strings.Contains(f[0].Problem, problem) || f[0].Why == "" || f[0].Mend == "" {
			t.Errorf("finding %q: %+v, want %q", check, f, problem)
		}
	}
	// What is said to mend it mends it.
	command := strings.TrimPrefix(found["error nodes"][0].Mend, "kubectl delete resourceslices --field-selector ")
	if err := e.Client().ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: command}); err != nil {
		t.Fatal(err)
	}
	if found := e.doctor(t, cluster.UserAdmin, 2); len(found["ok nodes"]) != 1 {
		t.Errorf("after mending: %+v", found["error nodes"])
	}
}

// eventually waits for what the API server needs a moment for.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within a minute")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// noTraces: a dry run creates nothing.
func (e *env) noTraces(t *testing.T) {
	t.Helper()
	const name = "topodra-doctor-dry-run"
	templates, err := e.Client().ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(templates.Items) > 0 {
		t.Errorf("templates %v, %v", templates.Items, err)
	}
	if _, err := e.Client().ResourceV1().DeviceClasses().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		t.Errorf("class %q exists", name)
	}
	if _, err := e.Client().ResourceV1().ResourceSlices().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		t.Errorf("slice %q exists", name)
	}
}

// TestDoctorFindsDroppedFields: an API server with features switched off drops fields without a word; the dry runs show it.
func TestDoctorFindsDroppedFields(t *testing.T) {
	e := newEnv(t, "DRAConsumableCapacity=false,DRADeviceTaints=false,DRADeviceTaintRules=false,DRAPartitionableDevices=false")
	found := e.doctor(t, cluster.UserAdmin, 2)
	dropped := map[string]bool{}
	for _, f := range append(found["error fields"], found["info fields"]...) {
		dropped[f.Object] = true
	}
	for _, want := range []string{
		"field resourceclaims spec.devices.requests[].exactly.capacity", "field resourceclaims spec.devices.requests[].exactly.tolerations",
		"field resourceslices spec.devices[].allowMultipleAllocations", "field resourceslices spec.devices[].taints",
	} {
		if !dropped[want] {
			t.Errorf("%q was not found to be dropped: %+v", want, found)
		}
	}
	if dropped["field deviceclasses spec.extendedResourceName"] {
		t.Error("a field that is kept was found to be dropped")
	}
}
