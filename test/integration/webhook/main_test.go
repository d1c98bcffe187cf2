// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/integration/testbed"
)

const (
	// grace is short, so that tests see templates go; there is nothing slow between the webhook and the store.
	grace = 6 * time.Second
	// lifetime of certificates is short, so that they are renewed all the time while the tests run.
	lifetime = 30 * time.Second
)

var (
	bed  *testbed.Bed
	hook *cluster.Webhook
)

// arguments of every webhook of the tests.
var arguments = []string{
	"--template-grace=" + grace.String(), "--collect-period=1s", "--straggler-period=1s", "--certificate-lifetime=" + lifetime.String(), "--certificate-period=2s",
}

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests starts everything, runs the tests and stops everything.
func runTests(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	controllers := append(cluster.DefaultControllers(), "statefulset-controller", "cronjob-controller", "resourcequota-controller")
	var err error
	bed, err = testbed.Start(ctx, testbed.Options{
		Cluster:   cluster.Options{Controllers: controllers},
		Manifests: []string{"manifests/webhook/rbac.yaml"},
		Nodes: []testbed.Node{
			{Name: "v100", Machine: "dgx1v_8xv100"},
			{Name: "h100", Machine: "hgxh100_8x_numa2"},
		},
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting the test cluster: %v\n", err)
		return 1
	}
	code := 1
	if err = startHook(ctx); err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, bed.Stop(ctx)); err != nil {
		fmt.Fprintf(os.Stderr, "the test cluster: %v\n", err)
		return 1
	}
	return code
}

// startHook makes the API server use a webhook.
func startHook(ctx context.Context) error {
	if err := register(ctx, "https://127.0.0.1:1/mutate-pods", nil); err != nil { // the program tells whom to trust in it
		return err
	}
	var err error
	if hook, err = bed.Cluster.StartWebhook(ctx, cluster.WebhookOptions{ExtraArgs: arguments}); err != nil {
		return err
	}
	return register(ctx, hook.URL, nil)
}

// register writes the shipped configuration with a URL in place of the Service, which nobody would route.
func register(ctx context.Context, url string, change func(*admissionv1.MutatingWebhook)) error {
	data, err := os.ReadFile(filepath.Join(bed.Root, "manifests/webhook/configuration.yaml"))
	if err != nil {
		return err
	}
	wanted := &admissionv1.MutatingWebhookConfiguration{}
	if err := yaml.UnmarshalStrict(data, wanted); err != nil {
		return err
	}
	client := bed.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for range 10 {
		target := &wanted.Webhooks[0]
		target.ClientConfig.Service, target.ClientConfig.URL = nil, &url
		if change != nil {
			change(target)
		}
		var found *admissionv1.MutatingWebhookConfiguration
		if found, err = client.Get(ctx, wanted.Name, metav1.GetOptions{}); err != nil {
			_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
		} else {
			target.ClientConfig.CABundle = found.Webhooks[0].ClientConfig.CABundle
			found.Webhooks = wanted.Webhooks
			_, err = client.Update(ctx, found, metav1.UpdateOptions{}) // again if the webhook was faster
		}
		if err == nil {
			return waitRegistered(ctx, url)
		}
	}
	return err
}

// waitRegistered waits until the API server works by the configuration: it takes it from a cache. A pod with a malformed request
// is refused by the webhook, and by nobody else in these words; where no webhook is meant to answer, by none.
func waitRegistered(ctx context.Context, url string) error {
	if strings.Contains(url, ":1/") {
		return nil
	}
	var last error
	for deadline := time.Now().Add(testbed.Patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		_, last = bed.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod("probe", "gpu", "1", "gpucores", "101"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if last != nil && strings.Contains(last.Error(), "must be a whole number from 0 to 100") {
			return nil
		}
	}
	return fmt.Errorf("the API server does not ask the webhook; the last answer was: %w", last)
}
