// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/topodra/topodra/test/integration/chart/release"
)

// serviceMonitors is as much of the Prometheus operator as the API server needs to take what the chart has for it.
const serviceMonitors = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: ServiceMonitor, listKind: ServiceMonitorList, plural: servicemonitors, singular: servicemonitor}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`

// variants of values that together reach every line of the templates.
var variants = map[string][]string{
	"defaults": nil,
	"all on": {"--set", "namespace.create=true,deviceClasses.extendedResourceName=nvidia.com/gpu,metrics.serviceMonitors.enabled=true",
		"--set", "metrics.serviceMonitors.labels.release=prometheus,image.registry=registry.example.com/gpu,image.pullSecrets[0].name=pull",
		"--set", "driver.hamiCore.image.repository=hami,driver.hamiCore.image.tag=v1,driver.onViolation=Evict,driver.minMemory=1Gi,driver.memoryReserve=512Mi",
		"--set", "driver.extraArgs[0]=--hami-metric-aliases,scheduler.extraArgs[0]=--profiling=false,scheduler.pluginArgs.maxCandidates=5"},
	"all off": {"--set", "deviceClasses.create=false,policies.enabled=false,networkPolicies.enabled=false,metrics.services=false,scheduler.podDisruptionBudget=false",
		"--set", "driver.nriDir=,scheduler.replicas=1,networkPolicies.metricsFrom=null"},
	"without NRI":          {"--set", "driver.nriDir="},
	"nobody reads metrics": {"--set-json", "networkPolicies.metricsFrom=[]"},
	"replace":              {"--set", "scheduler.mode=Replace"},
	"simulated":            {"--set", "driver.simulatedMachineConfigMap=machine,driver.nvidiaDriverRoot=/run/nvidia/driver"},
	"driver root":          {"--set", "driver.nvidiaDriverRoot=/run/nvidia/driver"},
	"scheduler only":       {"--set", "driver.enabled=false"},
	"driver only":          {"--set", "scheduler.enabled=false,webhook.enabled=false"},
	"webhook":              {"--set", "webhook.replicas=1,webhook.failurePolicy=Ignore,webhook.excludedNamespaces={monitoring,kube-system},webhook.extraArgs={--collect-period=5m}"},
}

// The API server takes every object of every variant, with no field that it does not know.
func TestRenderedObjects(t *testing.T) {
	if err := bed.ApplyYAML(t.Context(), []byte(serviceMonitors)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, object := range release.Objects(t, []byte(serviceMonitors)) {
			client, err := bed.resource(object)
			if err != nil {
				t.Fatal(err)
			}
			if err := client.Delete(context.Background(), object.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	eventually(t.Context(), t, func() string {
		bed.mapper.Reset()
		if _, err := bed.Client().Discovery().ServerResourcesForGroupVersion("monitoring.coreos.com/v1"); err != nil {
			return err.Error()
		}
		return ""
	})
	for name, args := range variants {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			objects := release.Objects(t, release.Render(t, args...))
			for _, object := range objects {
				id := object.GetKind() + "/" + object.GetNamespace() + "/" + object.GetName()
				if seen[id] {
					t.Errorf("%s is there twice", id)
				}
				seen[id] = true
				client, err := bed.resource(object)
				if err != nil {
					t.Fatal(err)
				}
				options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
				if object.GetKind() == "Namespace" { // it exists
					object.SetName("another")
				}
				if _, err := client.Create(t.Context(), object, options); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
			if len(objects) == 0 {
				t.Error("nothing was rendered")
			}
		})
	}
}

// Everything but the driver is content with the Pod Security Standard "restricted", the driver needs "privileged".
func TestPodSecurity(t *testing.T) {
	namespaces := bed.Client().CoreV1().Namespaces()
	for _, level := range []string{"restricted", "baseline", "privileged"} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "pods-" + level, Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/enforce-version": "latest"}}}
		if _, err := namespaces.Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := namespaces.Delete(context.Background(), namespace.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	rendered := release.Render(t, variants["all on"]...)
	workloads := 0
	for _, workload := range release.Objects(t, rendered, "Deployment", "DaemonSet", "Job", "CronJob", "StatefulSet") {
		workloads++
		template := release.PodTemplate(t, workload)
		create := func(level string) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: workload.GetName()}, Spec: template.Spec}
			_, err := bed.Client().CoreV1().Pods("pods-"+level).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		if workload.GetName() == "topodra-driver" {
			if err := create("baseline"); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
				t.Errorf("the driver below baseline: %v, want a refusal: it would not need the label of its namespace", err)
			}
			if err := create("privileged"); err != nil {
				t.Errorf("the driver below privileged: %v", err)
			}
		} else {
			if err := create("restricted"); err != nil {
				t.Errorf("%s: %v", workload.GetName(), err)
			}
		}
		for _, container := range slices.Concat(template.Spec.InitContainers, template.Spec.Containers) {
			if s := container.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: the root of container %q can be written", workload.GetName(), container.Name)
			}
			if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() {
				t.Errorf("%s: container %q requests no CPU or no memory", workload.GetName(), container.Name)
			}
		}
	}
	if workloads != 3 {
		t.Errorf("%d workloads, want scheduler, driver and webhook", workloads)
	}
}

// Values that make no sense are refused with the path of the value.
func TestValues(t *testing.T) {
	for set, path := range map[string]string{
		"schedular.replicas=2":                        "schedular",
		"scheduler.replica=2":                         "/scheduler",
		"scheduler.replicas=0":                        "/scheduler/replicas",
		"scheduler.mode=Beside":                       "/scheduler/mode",
		"scheduler.defaultPolicy=Required":            "/scheduler/defaultPolicy",
		"scheduler.tierPercent=51":                    "/scheduler/tierPercent",
		"scheduler.mix[0].gpus=0":                     "/scheduler/mix/0",
		"scheduler.pluginArgs.tierPercent=3":          "/scheduler/pluginArgs",
		"scheduler.image.repository=":                 "/scheduler/image",
		"scheduler.image.digest=latest":               "/scheduler/image/digest",
		"driver.nvidiaDriverRoot=run/nvidia/driver":   "/driver/nvidiaDriverRoot",
		"driver.kubeletDir=/var/lib/kubelet/":         "/driver/kubeletDir",
		"driver.hamiCore.image.repository=hami":       "/driver/hamiCore/image",
		"driver.onViolation=Kill":                     "/driver/onViolation",
		"driver.enforcement=none":                     "/driver/enforcement",
		"driver.minMemory=much":                       "/driver/minMemory",
		"driver.maxSharers=-1":                        "/driver/maxSharers",
		"driver.maxSurge=0":                           "/driver/maxSurge",
		"driver.rescanPeriod=60":                      "/driver/rescanPeriod",
		"driver.nodeLabels=null,driver.enabled=maybe": "/driver/enabled",
		"policies.validationActions[0]=Hope":          "/policies/validationActions/0",
		"networkPolicies.apiServerPorts[0]=70000":     "/networkPolicies/apiServerPorts/0",
		"image.pullPolicy=Sometimes":                  "/image/pullPolicy",
		"deviceClasses.extendedResourceName=gpu":      "/deviceClasses/extendedResourceName",
		"webhook.foreignScheduler=Kill":               "/webhook/foreignScheduler",
		"webhook.failurePolicy=Hope":                  "/webhook/failurePolicy",
		"webhook.excludedNamespaces[0]=A":             "/webhook/excludedNamespaces/0",
		"metrics.serviceMonitors.interval=often":      "/metrics/serviceMonitors/interval",
		"namespace.create=yes please":                 "/namespace/create",
	} {
		_, err := release.Helm(t.Context(), t.TempDir(), "template", release.Name, release.Chart, "--set", set)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "schema") {
			t.Errorf("--set %s: %v, want a refusal by the schema that names %q", set, err, path)
		}
	}
}

// What is generated from the chart is up to date, and the kustomize base has the same objects.
func TestGenerated(t *testing.T) {
	check := exec.CommandContext(t.Context(), filepath.Join(bed.root, "hack/manifests.sh"), "--check")
	check.Env = append(check.Environ(), "HOME="+t.TempDir())
	if output, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	kustomizer := krusty.MakeKustomizer(krusty.MakeDefaultOptions())
	base, err := kustomizer.Run(filesys.MakeFsOnDisk(), filepath.Join(bed.root, "manifests/kustomize/base"))
	if err != nil {
		t.Fatal(err)
	}
	built, err := base.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	want, got := objects(t, release.Render(t, "--set", "namespace.create=true")), objects(t, built)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the kustomize base differs from the chart (-chart +base):\n%s", diff)
	}
}

// objects returns what is rendered by kind and name.
func objects(t *testing.T, rendered []byte) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for _, object := range release.Objects(t, rendered) {
		out[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object.Object
	}
	return out
}
