// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Grace periods between SIGTERM and SIGKILL. The data is thrown away, so a graceful end only saves log noise; kube-apiserver
// would wait up to a minute for clients that are still connected.
const (
	etcdGrace              = 5 * time.Second
	apiServerGrace         = 5 * time.Second
	controllerManagerGrace = 5 * time.Second
	schedulerGrace         = 5 * time.Second
	driverGrace            = 10 * time.Second // it removes its sockets
)

// maxSocketPath is the longest path of a unix socket on Linux: 108 bytes with the final zero.
const maxSocketPath = 107

// baseRBAC holds TopoDRA's namespace, its service accounts and what they may do.
//
//go:embed rbac.yaml
var baseRBAC []byte

// DefaultControllers returns what the controller manager runs unless Options.Controllers says otherwise: claims from
// templates and their release, clean-up of what belongs to deleted objects and nodes, and the workload controllers that a
// person at kubectl expects. No node lifecycle controller: without kubelets it would evict everything.
func DefaultControllers() []string {
	return []string{
		"clusterrole-aggregation-controller",
		"deployment-controller",
		"device-taint-eviction-controller",
		"garbage-collector-controller",
		"job-controller",
		"namespace-controller",
		"pod-garbage-collector-controller",
		"replicaset-controller",
		"resourceclaim-controller",
		"serviceaccount-controller",
		"validatingadmissionpolicy-status-controller",
	}
}

// bringUp starts the control plane, each part when the one below it is ready.
func (c *Cluster) bringUp(ctx context.Context) error {
	// All binaries are looked up first: one message about what is missing rather than one per try.
	for _, name := range []string{Etcd, KubeAPIServer, KubeControllerManager} {
		if _, err := findBinary(c.binDir, name); err != nil {
			return err
		}
	}
	if err := c.writeCredentials(); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if err := c.ApplyYAML(ctx, baseRBAC); err != nil {
		return err
	}
	return c.startControllerManager(ctx)
}

func (c *Cluster) etcdSocket() string { return c.path("etcd.sock") }

// startEtcd starts etcd with a unix socket for its clients and a port that the kernel picks for peers, of which there are none.
func (c *Cluster) startEtcd(ctx context.Context) error {
	socket := c.etcdSocket()
	if len(socket) > maxSocketPath {
		return fmt.Errorf("starting %q: the socket path %q has %d bytes, more than %d: choose a shorter data directory",
			Etcd, socket, len(socket), maxSocketPath)
	}
	p, err := c.start(stageEtcd, Etcd, Etcd, []string{
		"--data-dir=" + c.path("etcd"),
		"--listen-client-urls=unix://" + socket,
		"--advertise-client-urls=unix://" + socket,
		"--listen-peer-urls=http://" + net.JoinHostPort(loopback, "0"),
		"--unsafe-no-fsync", // the data does not outlive the run
		"--log-level=warn",
	}, etcdGrace)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: probeTimeout}
	if err := p.waitReady(ctx, readyTimeout, func(ctx context.Context) error { return etcdHealth(ctx, client) }); err != nil {
		return fmt.Errorf("starting %q: %w", Etcd, err)
	}
	c.watch(p)
	return nil
}

func etcdHealth(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://etcd/health", http.NoBody)
	if err != nil {
		return fmt.Errorf("building a request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking etcd for its health: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking etcd for its health: %s", resp.Status)
	}
	return nil
}

func (c *Cluster) apiServerArgs(port int) []string {
	args := []string{
		"--etcd-servers=unix://" + c.etcdSocket(),
		"--secure-port=" + strconv.Itoa(port),
		"--bind-address=" + loopback,
		"--cert-dir=" + c.path("certs", KubeAPIServer),
		// The "kubernetes" service would need an address beyond loopback, and nobody uses it.
		"--endpoint-reconciler-type=none",
		"--token-auth-file=" + c.tokenFile(),
		"--authorization-mode=RBAC,Node",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--service-account-key-file=" + c.publicKeyFile(),
		"--service-account-signing-key-file=" + c.privateKeyFile(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true",
	}
	if c.opts.FeatureGates != "" {
		args = append(args, "--feature-gates="+c.opts.FeatureGates)
	}
	if c.opts.RuntimeConfig != "" {
		args = append(args, "--runtime-config="+c.opts.RuntimeConfig)
	}
	return append(args, c.opts.APIServerArgs...)
}

// startAPIServer starts the API server and makes the admin's client for it.
func (c *Cluster) startAPIServer(ctx context.Context) error {
	cert := c.path("certs", KubeAPIServer, "apiserver.crt")
	p, err := c.startServer(ctx, serverSpec{
		stage: stageAPIServer, name: KubeAPIServer, binary: KubeAPIServer, args: c.apiServerArgs,
		certFile: cert, path: "/readyz", token: c.tokens[UserAdmin], grace: apiServerGrace,
	})
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(cert)
	if err != nil {
		return fmt.Errorf("reading the API server's certificate: %w", err)
	}
	c.admin = &rest.Config{
		Host:            "https://" + p.Addr,
		BearerToken:     c.tokens[UserAdmin],
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		QPS:             -1, // no client-side limit: the server has its own
		Timeout:         time.Minute,
	}
	if c.client, err = kubernetes.NewForConfig(c.admin); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	// The default namespace is made after /readyz turned good.
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, readyTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err == nil, nil // tried again until the time is up
	})
	if err != nil {
		return fmt.Errorf("waiting for namespace %q: %w", metav1.NamespaceDefault, err)
	}
	return nil
}

// startControllerManager starts the chosen controllers, each under its own service account as in a real cluster.
func (c *Cluster) startControllerManager(ctx context.Context) error {
	kubeconfig, err := c.Kubeconfig(ctx, UserControllerManager)
	if err != nil {
		return err
	}
	controllers := c.opts.Controllers
	if controllers == nil {
		controllers = DefaultControllers()
	}
	_, err = c.startServer(ctx, serverSpec{
		stage: stageControllerManager, name: KubeControllerManager, binary: KubeControllerManager,
		args: func(port int) []string {
			args := append(c.componentArgs(KubeControllerManager, port),
				"--kubeconfig="+kubeconfig,
				"--service-account-private-key-file="+c.privateKeyFile(),
				"--use-service-account-credentials=true",
				"--controllers="+strings.Join(controllers, ","),
				"--leader-elect=false",
				"--kube-api-qps=500",
				"--kube-api-burst=1000",
			)
			return append(args, c.opts.ControllerManagerArgs...)
		},
		certFile: c.componentCert(KubeControllerManager, KubeControllerManager), path: "/healthz", grace: controllerManagerGrace,
	})
	return err
}

// componentArgs returns the serving flags that the controller manager and the schedulers share. name is the process's own.
func (c *Cluster) componentArgs(name string, port int) []string {
	args := []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + c.path("certs", name),
		"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
	}
	if c.opts.FeatureGates != "" {
		args = append(args, "--feature-gates="+c.opts.FeatureGates)
	}
	return args
}

// componentCert returns where a process writes its certificate. pair is the name that its program gives to the pair.
func (c *Cluster) componentCert(name, pair string) string {
	return c.path("certs", name, pair+".crt")
}
