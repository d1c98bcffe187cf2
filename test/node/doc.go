// SPDX-License-Identifier: Apache-2.0

// Package node starts one real Kubernetes node on this machine: containerd with runc, CDI and NRI, and a kubelet that
// joins a control plane of package test/cluster. Pods of this node are real containers. It needs root.
//
// # Use
//
//	n, err := node.Start(ctx, c, node.Options{Name: "node-a"})
//	if err != nil { … }          // the error carries the last log lines of the process that failed
//	defer n.Stop()               // before c.Stop
//	err = n.ImportImage(ctx, image)
//	… create a pod with imagePullPolicy Never, wait until it runs …
//	result, err := n.Exec(ctx, pod, "container", "env")
//
// The programs are built into bin/ by `make binaries-node`; runc, the network plugins and busybox are Debian packages, see
// hack/install-node-deps.sh.
//
// # What a driver needs
//
// [Node.PluginRegistryDir], [Node.PluginsDir] and [Node.CDIDir] are the directories through which a driver, the kubelet and
// containerd meet, [Node.NRISocket] is containerd's socket for plugins that adjust containers. [Node.Run] starts a
// program where it sees the node's mounts, and [Node.Kubeconfig] reaches the API server through the link that
// [Node.Disconnect] cuts.
//
// # Invariants
//
//   - A warden (warden.sh), a process in a session of its own, outlives the launcher: when the launcher stops the node, is
//     killed, panics or gets Ctrl-C, its end of a pipe closes, and the warden kills what is in the node's cgroups, removes
//     these and the node's directory, and restores the kernel settings that a kubelet changes.
//   - All processes of the node are in the node's cgroups, whatever forked them. Nothing is ever killed by name.
//   - All mounts of the node are made in a mount namespace of its own, where /run, /var/lib and /var/log are empty
//     file systems in memory: they end with the last process. Network namespaces and links of pods end with their mounts.
//   - One node at a time per machine, because kubelets set global kernel settings: the next one waits for the lock.
//   - Servers listen on loopback only. Pods get addresses of [Options].PodSubnet on point-to-point links and no route beyond
//     this machine.
//
// # Limits
//
// cgroup version 1, hybrid and 2 are detected; on version 2 the top must hand down cpu, memory and pids, which it cannot in a
// container with processes at its top. Swap may be on. No kube-proxy, no DNS: pods have no services.
//
// # Concurrency
//
// All methods of [Node] may be called from several goroutines; those that start and stop the kubelet and containerd wait for
// each other.
//
// # Allowed imports
//
// The standard library, k8s.io/api, apimachinery, client-go, cri-api, google.golang.org/grpc, sigs.k8s.io/yaml and
// test/cluster.
package node
