// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/chart/release"
)

// webhookName is that of the webhook's configuration, Service, program and account.
const webhookName = "topodra-webhook"

// webhookConfiguration reads it.
func webhookConfiguration(t *testing.T) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	object, err := bed.Client().AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), webhookName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// startWebhook starts the webhook with the rendered arguments and a token of its pod, waits until the API server knows whom to trust,
// and sends the API server to the process, since no Service leads anywhere here.
func startWebhook(t *testing.T, rendered []byte) *cluster.Process {
	t.Helper()
	_, config := podOf(t, rendered, "Deployment", webhookName, "some-webhook", "")
	port, probes, metrics := strconv.Itoa(release.FreePort(t)), strconv.Itoa(release.FreePort(t)), strconv.Itoa(release.FreePort(t))
	args := release.Args(t, release.Find(t, rendered, "Deployment", webhookName), nil, map[string]string{
		":8080": "127.0.0.1:" + metrics, ":8081": "127.0.0.1:" + probes,
	})
	args = append(args, "--bind-address=127.0.0.1", "--secure-port="+port, "--tls-host=127.0.0.1", "--kubeconfig="+release.Kubeconfig(t, config))
	process := release.Start(t, bed.Cluster, "webhook", webhookName, args, "http://127.0.0.1:"+probes+"/readyz")
	eventually(t.Context(), t, func() string {
		if len(webhookConfiguration(t).Webhooks[0].ClientConfig.CABundle) == 0 {
			return "the webhook has not said whom to trust"
		}
		return ""
	})
	// An upgrade leaves that alone.
	trusted := webhookConfiguration(t).Webhooks[0].ClientConfig.CABundle
	bed.helm(t, "upgrade", release.Name, release.Chart, "--reuse-values", "--set", "webhook.logLevel=3")
	if got := webhookConfiguration(t).Webhooks[0].ClientConfig.CABundle; !bytes.Equal(got, trusted) {
		t.Errorf("an upgrade changes whom the API server trusts from %d to %d bytes", len(trusted), len(got))
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "remove", "path": "/webhooks/0/clientConfig/service"},
		{"op": "add", "path": "/webhooks/0/clientConfig/url", "value": "https://127.0.0.1:" + port + "/mutate-pods"},
	})
	if err != nil {
		t.Fatal(err)
	}
	configurations := bed.Client().AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Patch(t.Context(), webhookName, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, func() string {
		pod := classicPod("probe")
		created, err := bed.Client().CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		if created.Spec.SchedulerName != api.SchedulerName {
			return fmt.Sprintf("the pod is left to %q", created.Spec.SchedulerName)
		}
		return ""
	})
	return process
}

// classicPod asks for a GPU in the classic vocabulary and knows nothing of claims and schedulers.
func classicPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")},
		}}}},
	}
}

// classic creates a classic pod and waits until it is placed, by a claim that was made for it.
func classic(t *testing.T, name string) {
	t.Helper()
	pods := bed.Client().CoreV1().Pods("default")
	pod, err := pods.Create(t.Context(), classicPod(name), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.Background(), name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Error(err)
		}
	})
	if len(pod.Spec.ResourceClaims) != 1 || pod.Spec.SchedulerName != api.SchedulerName {
		t.Fatalf("the pod has claims %v and scheduler %q", pod.Spec.ResourceClaims, pod.Spec.SchedulerName)
	}
	eventually(t.Context(), t, func() string {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.Spec.NodeName == gpuNode {
			return ""
		}
		return fmt.Sprintf("pod %q is not bound: %v", name, pod.Status.Conditions)
	})
}
