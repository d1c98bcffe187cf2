// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	// TopoDRAWebhook is built from cmd/webhook.
	TopoDRAWebhook = "topodra-webhook"
	// UserTopoDRAWebhook is the service account of TopoDRA's webhook. Its rights are in manifests/webhook.
	UserTopoDRAWebhook = serviceAccountPrefix + Namespace + ":topodra-webhook"

	webhookGrace = 10 * time.Second
)

// WebhookOptions says which webhook to start.
type WebhookOptions struct {
	// Name names the process and its log, not that of another running process. Default: Binary.
	Name string
	// Binary is [TopoDRAWebhook] (the default), or a path with a slash to any other one with the same flags.
	Binary string
	// User is who the webhook is; default: [UserTopoDRAWebhook].
	User string
	// ExtraArgs are further arguments; they win over the package's own.
	ExtraArgs []string
}

// Webhook is a running webhook.
type Webhook struct {
	*Process
	// URL is where the API server sends pods.
	URL string
	// MetricsURL answers with metrics.
	MetricsURL string
}

// StartWebhook starts a webhook and returns when it is ready to answer. The API server does not know it: that takes a
// MutatingWebhookConfiguration with its URL.
func (c *Cluster) StartWebhook(ctx context.Context, opts WebhookOptions) (*Webhook, error) {
	if opts.Binary == "" {
		opts.Binary = TopoDRAWebhook
	}
	if opts.Name == "" {
		opts.Name = TopoDRAWebhook
	}
	if opts.User == "" {
		opts.User = UserTopoDRAWebhook
	}
	kubeconfig, err := c.Kubeconfig(ctx, opts.User)
	if err != nil {
		return nil, fmt.Errorf("starting webhook %q: %w", opts.Name, err)
	}
	var last error
	for range portAttempts {
		started, taken, err := c.tryWebhook(ctx, opts, kubeconfig)
		if err == nil {
			c.watch(started.Process)
			return started, nil
		}
		if last = err; !taken {
			break
		}
	}
	return nil, fmt.Errorf("starting webhook %q: %w", opts.Name, last)
}

// tryWebhook makes one attempt. taken says that another process has one of the ports.
func (c *Cluster) tryWebhook(ctx context.Context, opts WebhookOptions, kubeconfig string) (started *Webhook, taken bool, err error) {
	var ports [3]int
	for i := range ports {
		if ports[i], err = c.pickPort(); err != nil {
			return nil, false, err
		}
	}
	address := func(i int) string { return net.JoinHostPort(loopback, strconv.Itoa(ports[i])) }
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--namespace=" + Namespace,
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(ports[0]),
		"--metrics-bind-address=" + address(1),
		"--health-probe-bind-address=" + address(2),
		"--tls-host=" + loopback,
	}
	p, err := c.start(stageClients, opts.Name, opts.Binary, append(args, opts.ExtraArgs...), webhookGrace)
	if err != nil {
		return nil, false, err
	}
	client := &http.Client{Timeout: probeTimeout}
	defer client.CloseIdleConnections()
	err = p.waitReady(ctx, readyTimeout, func(ctx context.Context) error {
		return probe(ctx, client, "http://"+address(2)+"/readyz")
	})
	if err != nil {
		taken = p.Err() != nil && p.portTaken()
		return nil, taken, errors.Join(err, p.Stop())
	}
	return &Webhook{Process: p, URL: "https://" + address(0) + "/mutate-pods", MetricsURL: "http://" + address(1) + "/metrics"}, false, nil
}

// probe asks for a status of 200.
func probe(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("building a request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking whether it is ready: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking whether it is ready: %s", resp.Status)
	}
	return nil
}
