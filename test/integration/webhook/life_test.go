// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/testbed"
)

// podTemplate makes the template of a workload's pods.
func podTemplate(app string, policy corev1.RestartPolicy, limits ...string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{container("app", limits...)}},
	}
}

// endWorkloads removes what would make new pods, before the scene looks whether any are left.
func endWorkloads(t *testing.T, s *testbed.Scene) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		options := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}
		for _, remove := range []func() error{
			func() error {
				return s.Client.AppsV1().Deployments(s.Namespace).DeleteCollection(ctx, options, metav1.ListOptions{})
			},
			func() error {
				return s.Client.AppsV1().StatefulSets(s.Namespace).DeleteCollection(ctx, options, metav1.ListOptions{})
			},
			func() error {
				return s.Client.BatchV1().CronJobs(s.Namespace).DeleteCollection(ctx, options, metav1.ListOptions{})
			},
		} {
			if err := remove(); err != nil {
				t.Error(err)
			}
		}
		for deadline := time.Now().Add(testbed.Patience); ; time.Sleep(50 * time.Millisecond) {
			deployments, err := s.Client.AppsV1().Deployments(s.Namespace).List(ctx, metav1.ListOptions{})
			if err == nil && len(deployments.Items) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("deployments are left: %v", err)
				return
			}
		}
	})
}

// waitShared waits until an app has so many bound pods, each with a claim of its own from the one template.
func waitShared(s *testbed.Scene, app string, pods int, classes map[string]bool) {
	s.Eventually(func(ctx context.Context) string {
		list, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err.Error()
		}
		claims, templates := map[string]bool{}, map[string]bool{}
		for i := range list.Items {
			if p := &list.Items[i]; p.Spec.NodeName != "" && len(p.Status.ResourceClaimStatuses) == 1 {
				claims[*p.Status.ResourceClaimStatuses[0].ResourceClaimName] = true
				templates[*p.Spec.ResourceClaims[0].ResourceClaimTemplateName] = true
				classes[*p.Spec.ResourceClaims[0].ResourceClaimTemplateName] = true
			}
		}
		if len(claims) < pods || len(templates) != 1 {
			return fmt.Sprintf("app %q has claims %v from templates %v, it should have %d", app, claims, templates, pods)
		}
		return ""
	})
}

// TestW02_Workloads runs every kind of workload by its real controller.
func TestW02_Workloads(t *testing.T) {
	s := bed.Scene(t)
	endWorkloads(t, s)
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	limits := []string{"gpumem", "1000"}
	never := corev1.RestartPolicyNever
	_, err := s.Client.BatchV1().CronJobs(s.Namespace).Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "cron"},
		Spec:       batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: podTemplate("cron", never, limits...)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Client.AppsV1().Deployments(s.Namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "deployment"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: selector("deployment"), Template: podTemplate("deployment", corev1.RestartPolicyAlways, limits...)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Client.AppsV1().StatefulSets(s.Namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "stateful"},
		Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2)), PodManagementPolicy: appsv1.ParallelPodManagement, ServiceName: "none",
			Selector: selector("stateful"), Template: podTemplate("stateful", corev1.RestartPolicyAlways, limits...)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Client.BatchV1().Jobs(s.Namespace).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       batchv1.JobSpec{Parallelism: new(int32(2)), Completions: new(int32(2)), Template: podTemplate("job", never, limits...)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p := pod("", limits...)
		p.GenerateName, p.Labels = "operator-", map[string]string{"app": "operator"}
		create(t, s, p)
	}
	templates := map[string]bool{}
	for app, pods := range map[string]int{"deployment": 3, "stateful": 2, "job": 2, "operator": 2} {
		waitShared(s, app, pods, templates)
	}
	deadline := time.Now().Add(75 * time.Second) // the controller starts jobs at full minutes
	for time.Now().Before(deadline) {
		if list, err := s.Client.CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=cron"}); err == nil && len(list.Items) > 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	waitShared(s, "cron", 1, templates)
	if len(templates) != 1 {
		t.Errorf("one demand has templates %v", templates)
	}
}

// TestW01_RejectedPodsLeaveNothing has a quota refuse the pod after the webhook, and tries a dry run.
func TestW01_RejectedPodsLeaveNothing(t *testing.T) {
	s := bed.Scene(t)
	if _, err := s.Client.CoreV1().Pods(s.Namespace).Create(t.Context(), pod("dry", "gpu", "1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if names := templateNames(t.Context(), s); len(names) > 0 {
		t.Errorf("a dry run leaves %q", names)
	}
	_, err := s.Client.CoreV1().ResourceQuotas(s.Namespace).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: list("cpu", "0")["cpu"]}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Eventually(func(ctx context.Context) string {
		_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, pod("refused", "gpu", "1"), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "exceeded quota") {
			_ = s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "refused", metav1.DeleteOptions{}) // the quota was not known yet
			return fmt.Sprintf("the quota does not refuse the pod: %v", err)
		}
		return ""
	})
	waitTemplates(s, 0)
	claims, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) > 0 {
		t.Errorf("claims are left: %v %v", claims.Items, err)
	}
}

// TestPodsRaceWithCollector creates pods of one demand at the moments at which their template may be about to go.
func TestPodsRaceWithCollector(t *testing.T) {
	s := bed.Scene(t)
	for i, pause := range []time.Duration{0, grace / 2, grace - 200*time.Millisecond, grace, grace + 700*time.Millisecond, grace + 1200*time.Millisecond} {
		time.Sleep(pause) // what is tested is time itself
		name := fmt.Sprintf("pod-%d", i)
		claim := place(t, s, pod(name, "gpumem", "1234"))
		if gpus(s, claim).Count() != 1 {
			t.Errorf("pod %q has %s", name, s.Allocation(claim.Name))
		}
		s.Finish(name)
	}
	waitTemplates(s, 0)
}

// TestW03_ClaimStaysUntilThePodIsGone deletes a pod that takes its time.
func TestW03_ClaimStaysUntilThePodIsGone(t *testing.T) {
	s := bed.Scene(t)
	p := pod("slow", "gpu", "1")
	p.Finalizers = []string{"example.com/hold"}
	claim := place(t, s, p)
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(t.Context(), "slow", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(t.Context(), claim.Name, metav1.GetOptions{})
	if err != nil || now.DeletionTimestamp != nil {
		t.Errorf("the claim of a pod that is still ending: %v, %v", now.DeletionTimestamp, err)
	}
	s.Eventually(func(ctx context.Context) string {
		found, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, "slow", metav1.GetOptions{})
		if err != nil {
			return ""
		}
		found.Finalizers = nil
		if _, err := s.Client.CoreV1().Pods(s.Namespace).Update(ctx, found, metav1.UpdateOptions{}); err != nil {
			return err.Error()
		}
		return "the pod was held until now"
	})
	waitTemplates(s, 0)
}

// TestInitContainersShare shows that a pod holds no more GPUs than it uses at once.
func TestInitContainersShare(t *testing.T) {
	s := bed.Scene(t)
	p := pod("app", "gpu", "8")
	p.Spec.InitContainers = []corev1.Container{container("check", "gpu", "1")}
	claim := place(t, s, p)
	if got := gpus(s, claim).Count(); got != 8 {
		t.Errorf("it has %d GPUs", got)
	}
	found, err := s.Client.CoreV1().Pods(s.Namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uses := requestsOf(found)
	if uses["check"] != "gpu-0" || uses["app"] != "gpu-0,gpu-1" || gpus(s, claim, "gpu-0").Count() != 1 {
		t.Errorf("containers use %v, the first request has %s", uses, gpus(s, claim, "gpu-0"))
	}
	// Shares of one container over several requests are on distinct GPUs (W05).
	p = pod("shares", "gpu", "3", "gpumem", "500")
	p.Spec.InitContainers = []corev1.Container{container("check", "gpu", "1", "gpumem", "500")}
	if got := gpus(s, place(t, s, p)).Count(); got != 3 {
		t.Errorf("three shares are on %d GPUs", got)
	}
}

// TestReinvocation has another webhook add a container with a classic request after ours has seen the pod.
func TestReinvocation(t *testing.T) {
	s := bed.Scene(t)
	injected := container("injected", "gpumem", "321")
	operation, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec/containers/-", "value": injected}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if !strings.Contains(string(review.Request.Object.Raw), `"injected"`) {
			review.Response.Patch, review.Response.PatchType = operation, new(admissionv1.PatchTypeJSONPatch)
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(&review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	client := s.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err = client.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "zz-injector"}, // configurations are called in the order of names
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "injector.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"inject": "true"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Finally(func(ctx context.Context) error { return client.Delete(ctx, "zz-injector", metav1.DeleteOptions{}) })
	var created *corev1.Pod
	n := 0
	s.Eventually(func(context.Context) string {
		n++
		p := pod(fmt.Sprintf("pod-%d", n), "gpu", "1")
		p.Labels = map[string]string{"inject": "true"}
		if created = create(t, s, p); len(created.Spec.Containers) == 2 {
			return ""
		}
		s.Finish(p.Name)
		return "the other webhook is not called yet"
	})
	if left := classicLeft(created); len(left) > 0 {
		t.Errorf("there are still %q", left)
	}
	var names []string
	for _, claim := range created.Spec.ResourceClaims {
		names = append(names, claim.Name)
	}
	if !slices.Equal(names, []string{"topodra-gpus", "topodra-gpus-2"}) {
		t.Errorf("claims are %q", names)
	}
	s.WaitBound(created.Name)
}

// TestRouting sends pods with claims of ours to our scheduler.
func TestRouting(t *testing.T) {
	s := bed.Scene(t)
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: api.DeviceClassGPU},
	}}}}
	_, err := s.Client.ResourceV1().ResourceClaimTemplates(s.Namespace).Create(t.Context(), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "team-gpu"}, Spec: resourceapi.DeviceClassSpec{
		ExtendedResourceName: new("team.example.com/gpu"),
		Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.topodra.dev" && device.attributes["gpu.topodra.dev"].type == "gpu"`}}},
	}}
	if _, err := s.Client.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Finally(func(ctx context.Context) error {
		return s.Client.ResourceV1().DeviceClasses().Delete(ctx, "team-gpu", metav1.DeleteOptions{})
	})
	withTemplate := func(name, scheduler string) *corev1.Pod {
		p := pod(name)
		p.Spec.SchedulerName = scheduler
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("mine")}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		return p
	}
	create(t, s, withTemplate("template", ""))
	s.WaitBound("template")
	if got := refused(t, s, withTemplate("foreign", "volcano")); !strings.Contains(got, `spec.schedulerName: Unsupported value: "volcano": supported values: "topodra-scheduler"`) {
		t.Errorf("got %q", got)
	}
	s.Eventually(func(context.Context) string { // the class is known to the webhook in a moment
		p := create(t, s, pod("extended", "team.example.com/gpu", "1"))
		if p.Spec.SchedulerName == api.SchedulerName {
			return ""
		}
		s.Finish("extended")
		return "the pod has scheduler " + p.Spec.SchedulerName
	})
	s.WaitBound("extended")
	if p := create(t, s, pod("plain")); p.Spec.SchedulerName != corev1.DefaultSchedulerName {
		t.Errorf("a pod without GPUs has scheduler %q", p.Spec.SchedulerName)
	}
}

// TestW07_ReplicasAndCertificates creates pods without a pause while certificates are renewed and one of two replicas goes.
func TestW07_ReplicasAndCertificates(t *testing.T) {
	s := bed.Scene(t)
	second, err := bed.Cluster.StartWebhook(t.Context(), cluster.WebhookOptions{Name: "webhook-2", ExtraArgs: arguments})
	if err != nil {
		t.Fatal(err)
	}
	admit := func(until time.Time) (admitted int) {
		for time.Now().Before(until) {
			if _, err := s.Client.CoreV1().Pods(s.Namespace).Create(t.Context(), pod("p", "gpumem", "77"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Fatalf("after %d pods: %v", admitted, err)
			}
			admitted++
		}
		return admitted
	}
	admit(time.Now().Add(lifetime))
	// To the API server a Service is one address. Here it is told the other one's, and the first one goes.
	if err := register(t.Context(), second.URL, nil); err != nil {
		t.Fatal(err)
	}
	admit(time.Now().Add(lifetime / 2))
	if err := register(t.Context(), hook.URL, nil); err != nil {
		t.Fatal(err)
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	if admit(time.Now().Add(2*time.Second)) == 0 {
		t.Error("no pod was admitted")
	}
}

// TestW10_PodsThatCamePast creates a pod while no webhook answers and its failure policy lets it pass.
func TestW10_PodsThatCamePast(t *testing.T) {
	s := bed.Scene(t)
	err := register(t.Context(), "https://127.0.0.1:1/mutate-pods", func(w *admissionregistrationv1.MutatingWebhook) {
		w.FailurePolicy = new(admissionregistrationv1.Ignore)
	})
	if err != nil {
		t.Fatal(err)
	}
	var missed *corev1.Pod
	s.Eventually(func(context.Context) string {
		if missed = create(t, s, pod("missed", "gpu", "1")); len(classicLeft(missed)) > 0 {
			return ""
		}
		s.Finish("missed")
		return "the webhook still answers"
	})
	if err := register(t.Context(), hook.URL, nil); err != nil {
		t.Fatal(err)
	}
	s.WaitEvent("missed", "NotConverted: This pod asks for nvidia.com/gpu and was created past the webhook")
}

// TestMigration applies the manifests of docs/migration.md, before and after, and compares what pods get.
func TestMigration(t *testing.T) {
	for _, c := range []struct {
		file string
		pods int
		want string // what each pod's claim takes, or nothing for others' drivers
	}{
		{"hami-classic", 2, "8000Mi/30 8000Mi/30"},
		{"hami-classic-as-claim", 2, "8000Mi/30 8000Mi/30"},
		{"hami-dra-before", 0, ""},
		{"hami-dra-after", 1, "10Gi/50"},
		{"nvidia-dra-before", 0, ""},
		{"nvidia-dra-after", 1, "whole whole"},
		{"device-plugin", 1, "whole whole whole whole"},
	} {
		t.Run(c.file, func(t *testing.T) {
			s := bed.Scene(t)
			endWorkloads(t, s)
			s.ApplyFile(filepath.Join(s.Root, "manifests/migration", c.file+".yaml"))
			if c.pods == 0 { // nobody here serves its class; that the API server takes it is what is tested
				return
			}
			s.Eventually(func(ctx context.Context) string { return migrated(ctx, s, c.pods, c.want) })
		})
	}
}
