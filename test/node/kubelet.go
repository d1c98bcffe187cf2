// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/test/cluster"
)

// kubeletConfig returns the kubelet's configuration, with more laid over it.
func kubeletConfig(n *Node, more map[string]any) ([]byte, error) {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		"address": loopback, "port": n.kubeletPort, "readOnlyPort": 0, "healthzPort": 0,
		// Whoever is on this machine may ask: nobody else reaches loopback.
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":  map[string]any{"mode": "AlwaysAllow"},

		"containerRuntimeEndpoint": "unix://" + n.ContainerdSocket(),
		"podLogsDir":               n.podLogs(),
		"volumePluginDir":          n.path("k", "volume-plugins"),
		"resolvConf":               n.path("resolv.conf"),

		"failCgroupV1": false, "cgroupDriver": "cgroupfs", "cgroupsPerQOS": true,
		"cgroupRoot":             "/" + n.cgroup + "/" + podCgroup,
		"enforceNodeAllocatable": []string{},
		"oomScoreAdj":            0, // to lower it would need CAP_SYS_RESOURCE
		"failSwapOn":             false,
		"makeIPTablesUtilChains": false,

		// A machine that runs tests is often nearly full, and that is nothing to evict pods for.
		"evictionHard":                map[string]string{"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,

		"maxPods":       250,
		"syncFrequency": "10s", // failed steps are tried again after this
		"kubeAPIQPS":    200,
		"kubeAPIBurst":  400,
	}
	maps.Copy(config, more)
	data, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	return data, nil
}

func (n *Node) podLogs() string { return n.path("pod-logs") }

// writeConfigs writes the configurations and the kubelet's credentials.
func (n *Node) writeConfigs() error {
	if err := n.writeContainerdConfig(); err != nil {
		return err
	}
	var err error
	if n.kubeletPort, err = freePort(); err != nil {
		return err
	}
	config, err := kubeletConfig(n, n.opts.KubeletConfig)
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(n.path("kubelet.yaml"), config, 0o600),
		os.WriteFile(n.path("resolv.conf"), nil, 0o644), //nolint:gosec // copied into containers
	)
	if err != nil {
		return fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	return n.writeKubeletKubeconfig()
}

func (n *Node) kubeletArgs() []string {
	args := []string{
		"--config=" + n.path("kubelet.yaml"),
		"--kubeconfig=" + n.path("kubelet.kubeconfig"),
		"--root-dir=" + n.path("k"),
		"--cert-dir=" + n.path("k", "pki"),
		"--hostname-override=" + n.opts.Name,
		"-v=2",
	}
	if n.opts.FeatureGates != "" {
		args = append(args, "--feature-gates="+n.opts.FeatureGates)
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(n.opts.Labels)) {
		labels = append(labels, key+"="+n.opts.Labels[key])
	}
	if len(labels) > 0 {
		args = append(args, "--node-labels="+strings.Join(labels, ","))
	}
	return args
}

// StartKubelet starts the kubelet and returns when it answers and the node is Ready; without a connection to the API server,
// when it answers. It does nothing if the kubelet runs.
func (n *Node) StartKubelet(ctx context.Context) error {
	n.services.Lock()
	defer n.services.Unlock()
	if n.kubelet != nil {
		return nil
	}
	began := time.Now()
	p, err := n.Run(ProcessOptions{Name: Kubelet, Path: filepath.Join(n.opts.BinDir, Kubelet), Args: n.kubeletArgs()})
	if err != nil {
		return err
	}
	if err = p.WaitReady(ctx, readyTimeout, n.kubeletHealthy); err == nil && n.link.connected() {
		err = p.WaitReady(ctx, readyTimeout, func(ctx context.Context) error { return n.readySince(ctx, began) })
	}
	if err != nil {
		return errors.Join(fmt.Errorf("starting %q: %w", Kubelet, err), p.Stop())
	}
	n.kubelet = p
	return nil
}

// StopKubelet stops the kubelet. Pods go on. It does nothing if the kubelet does not run.
func (n *Node) StopKubelet() error {
	n.services.Lock()
	defer n.services.Unlock()
	return n.takeKubelet(func(p *cluster.Process) error { return p.Stop() })
}

// RestartKubelet stops the kubelet and starts it again.
func (n *Node) RestartKubelet(ctx context.Context) error {
	if err := n.StopKubelet(); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

// takeKubelet hands the kubelet, if it runs, to f, and forgets it.
func (n *Node) takeKubelet(f func(*cluster.Process) error) error {
	p := n.kubelet
	n.kubelet = nil
	if p == nil {
		return nil
	}
	return f(p)
}

// kubeletHealthy asks the kubelet how it is.
func (n *Node) kubeletHealthy(ctx context.Context) error {
	pem, err := os.ReadFile(n.path("k", "pki", "kubelet.crt"))
	if err != nil {
		return fmt.Errorf("reading the kubelet's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return errors.New("reading the kubelet's certificate: none in the file yet")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: n.opts.Name, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: 5 * time.Second}
	url := "https://" + net.JoinHostPort(loopback, strconv.Itoa(n.kubeletPort)) + "/healthz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("building a request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking the kubelet: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking the kubelet: %s", resp.Status)
	}
	return nil
}

// readySince reports, as an error, that the kubelet has not said since a time that the node is Ready.
func (n *Node) readySince(ctx context.Context, since time.Time) error {
	object, err := n.client.CoreV1().Nodes().Get(ctx, n.opts.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("getting node %q: %w", n.opts.Name, err)
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		// Heartbeats have whole seconds.
		if condition.Status == corev1.ConditionTrue && !condition.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return nil
		}
		return fmt.Errorf("node %q: Ready is %s since %s, heard at %s: %s",
			n.opts.Name, condition.Status, condition.LastTransitionTime, condition.LastHeartbeatTime, condition.Message)
	}
	return fmt.Errorf("node %q has no Ready condition yet", n.opts.Name)
}
