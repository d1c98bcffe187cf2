// SPDX-License-Identifier: Apache-2.0

// Package cluster starts a real Kubernetes control plane from plain processes on loopback: etcd, kube-apiserver,
// kube-controller-manager, and any number of schedulers and TopoDRA drivers. Integration tests, the demo and
// `make cluster` stand on it.
//
// # Use
//
//	c, err := cluster.Start(ctx, cluster.Options{})
//	if err != nil { … }             // the error carries the last log lines of the process that failed
//	defer c.Stop()
//	_, err = c.AddNode(ctx, cluster.NodeOptions{Name: "node-a"})
//	_, err = c.StartDriver(ctx, cluster.DriverOptions{Node: "node-a", MachineFile: "machine.json"})
//	_, err = c.WaitForResourceSlices(ctx, "node-a", "gpu.topodra.dev")
//	_, err = c.StartScheduler(ctx, cluster.SchedulerOptions{Name: "topodra", Binary: cluster.TopoDRAScheduler, ConfigYAML: cfg})
//	client := c.Client()
//
// The binaries are built from this module's own module graph by `make binaries` and lie in bin/ of the repository;
// the environment variable TOPODRA_BIN names another directory.
//
// # What it is and what it is not
//
// Authorization is RBAC,Node, as in a real cluster. Base users authenticate with random static tokens, service accounts
// with tokens from the TokenRequest API; those of drivers are bound to their Node object, as kubelet-projected ones are.
// The admission plugins ServiceAccount and TaintNodesByCondition are off: the first would race with the controller that
// creates the "default" service account of a new namespace, the second would taint every node, because no node lifecycle
// controller runs that could remove the taint. For the same reason a Node object stays Ready for ever.
// There is no kubelet: a bound pod stays Pending unless [Cluster.RunPods] plays the kubelet's part.
//
// # Invariants
//
//   - Every process is stopped by its own process id: schedulers and drivers first, then the controller manager, the API
//     server and etcd; SIGTERM first, SIGKILL after a grace period. [Cluster.Stop] may be called any number of times and by
//     several goroutines; the end of the context given to [Start] has the same effect.
//   - When the parent dies without calling Stop, the kernel kills the children (PR_SET_PDEATHSIG). That signal follows the
//     death of the *thread* that forked the child, so each child is forked and awaited on a locked thread of its own.
//   - Nothing listens beyond loopback. etcd listens for clients on a unix socket in the data directory. The other servers
//     get a port that was free a moment ago; if another process takes it first, the next attempt uses a new one. A server
//     counts as ready only when it answers with the certificate that this very process wrote, so that a stranger on the
//     same port is never taken for it.
//   - A data directory that this package made is removed by Stop; one that the caller named is kept.
//
// # Concurrency
//
// All methods of [Cluster] and [Process] may be called from several goroutines.
//
// # Allowed imports
//
// The standard library, k8s.io/api, apimachinery, client-go and sigs.k8s.io/yaml. Neither k8s.io/kubernetes nor any other
// package of this module: what is under test runs in processes of its own.
package cluster
