// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/internal/livestate"
)

type selector = resourceapi.DeviceSelector

func hasParts(s resourceapi.ResourceSlice) bool {
	return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
		kind := d.Attributes[api.AttrType].StringValue
		return kind != nil && *kind == api.DeviceTypeMIG
	})
}

func checkKubelets(s *Snapshot) []Finding {
	var out []Finding
	for _, name := range s.publishers() {
		n := s.node(name)
		if n == nil {
			continue
		}
		text := n.Status.NodeInfo.KubeletVersion
		v, err := version.ParseGeneric(text)
		f := Finding{Object: "node " + name, Mend: fmt.Sprintf("upgrade the kubelet to %d.%d", testedMajor, testedMinor)}
		switch {
		case err != nil: // simulated nodes have none
			continue
		case v.LessThan(version.MajorMinor(testedMajor, kubeletMinor)):
			f.Level, f.Problem = Error, fmt.Sprintf("its kubelet is %s, older than %d.%d", text, testedMajor, kubeletMinor)
			f.Why = "it does not know resource.k8s.io/v1, so pods with claims never start there"
		case v.LessThan(version.MajorMinor(testedMajor, testedMinor)):
			f.Level, f.Problem = Warning, fmt.Sprintf("its kubelet is %s, older than %d.%d", text, testedMajor, testedMinor)
			f.Why = "the driver is not tested with it"
		default:
			continue
		}
		out = append(out, f)
	}
	return out
}

// Runtimes: since which version CDI and NRI are on without a configuration.
var runtimes = map[string]struct {
	works, byDefault *version.Version
}{
	"containerd": {works: version.MustParseSemantic("1.7.0"), byDefault: version.MustParseSemantic("2.0.0")},
	"cri-o":      {works: version.MustParseSemantic("1.26.0"), byDefault: version.MustParseSemantic("1.30.0")},
}

func checkRuntimes(s *Snapshot) []Finding {
	var out []Finding
	for _, name := range s.publishers() {
		n := s.node(name)
		if n == nil || n.Status.NodeInfo.ContainerRuntimeVersion == "" { // simulated nodes have none
			continue
		}
		text := n.Status.NodeInfo.ContainerRuntimeVersion
		kind, number, _ := strings.Cut(text, "://")
		v, err := version.ParseGeneric(number)
		known, ok := runtimes[kind]
		f := Finding{Object: "node " + name}
		switch {
		case !ok:
			f.Level, f.Problem = Warning, fmt.Sprintf("its container runtime %q is none that is tested", text)
			f.Why, f.Mend = "GPUs reach containers by CDI, and limits of shares by NRI", "use containerd 2 or CRI-O 1.30"
		case err != nil:
			f.Level, f.Problem, f.Why, f.Mend = Warning, fmt.Sprintf("the version of its container runtime %q cannot be read", text), "whether it supports CDI and NRI is not known", "containerd --version, on the node"
		case v.LessThan(known.works):
			f.Level, f.Problem = Error, fmt.Sprintf("its container runtime is %s, older than %s %s", text, kind, known.works)
			f.Why, f.Mend = "it cannot give GPUs to containers by CDI, so pods fail to start", fmt.Sprintf("upgrade %s to %s", kind, known.byDefault)
		case v.LessThan(known.byDefault):
			f.Level, f.Problem = Warning, fmt.Sprintf("its container runtime is %s, which has CDI and NRI off unless they are configured", text)
			f.Why = "without CDI pods with GPUs fail to start; without NRI some shares are refused (docs/node.md)"
			f.Mend = fmt.Sprintf("switch enable_cdi and NRI on in its configuration, or upgrade %s to %s", kind, known.byDefault)
		default:
			continue
		}
		out = append(out, f)
	}
	return out
}

func sayingSlices(s *Snapshot) string {
	devices := 0
	for i := range s.Slices {
		devices += len(s.Slices[i].Spec.Devices)
	}
	text := fmt.Sprintf("%s publish %s", several(len(s.publishers()), "node"), several(devices, "device"))
	if !s.has(Pods) {
		text += "; the driver's pods were not looked at: " + s.Unread[Pods]
	}
	return text
}

// checkDriver compares the driver's pods with what is published.
func checkDriver(s *Snapshot) []Finding {
	var out []Finding
	if len(s.publishers()) == 0 {
		out = append(out, Finding{
			Level: Error, Problem: "no node publishes GPUs", Why: "there is nothing to allocate: every pod with a claim waits",
			Mend: "kubectl get pods -A -l app.kubernetes.io/name=topodra,app.kubernetes.io/component=driver -o wide",
		})
	}
	if !s.has(Pods) {
		return out
	}
	alive := map[string]bool{}
	pods := s.podsOf(componentDriver)
	for _, p := range pods {
		alive[p.Spec.NodeName] = alive[p.Spec.NodeName] || ready(p)
	}
	for _, p := range pods {
		if ready(p) || p.Spec.NodeName != "" && alive[p.Spec.NodeName] {
			continue // during an update the old one still serves
		}
		out = append(out, Finding{
			Level: Error, Object: "pod " + p.Namespace + "/" + p.Name, Problem: fmt.Sprintf("this driver on node %q is not ready (%s)", p.Spec.NodeName, p.Status.Phase),
			Why: "claims on its node are not prepared, so their pods do not start, and a GPU that fails is not noticed", Mend: fmt.Sprintf("kubectl logs -n %s %s", p.Namespace, p.Name),
		})
	}
	if len(pods) == 0 {
		return out // the drivers run as services of the nodes, or not at all: their slices tell
	}
	for _, name := range s.publishers() {
		if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == name }) {
			out = append(out, Finding{
				Level: Error, Object: "node " + name, Problem: "it publishes GPUs, but no driver runs there",
				Why:  "what it publishes is old, and pods that get its GPUs do not start",
				Mend: "kubectl get pods -A -l app.kubernetes.io/name=topodra,app.kubernetes.io/component=driver -o wide; if the node shall have no driver: " + deleteSlices(name),
			})
		}
	}
	return out
}

func deleteSlices(node string) string {
	return "kubectl delete resourceslices --field-selector spec.driver=" + api.DriverName + ",spec.nodeName=" + node
}

// Labels by which node feature discovery and NVIDIA's operator mark nodes with NVIDIA GPUs.
func markedGPU(n *corev1.Node) bool {
	if n.Labels["nvidia.com/gpu.present"] == "true" {
		return true
	}
	for key, value := range n.Labels {
		if strings.HasPrefix(key, "feature.node.kubernetes.io/pci-") && strings.HasSuffix(key, "10de.present") && value == "true" {
			return true
		}
	}
	return false
}

// checkNodes compares the nodes with the publishers.
func checkNodes(s *Snapshot) []Finding {
	var out []Finding
	publishers := s.publishers()
	for _, name := range publishers {
		if s.node(name) == nil {
			out = append(out, Finding{
				Level: Error, Object: "node " + name, Problem: "GPUs are published for it, but it does not exist",
				Why: "they count as free and cannot be used", Mend: deleteSlices(name),
			})
		}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		publishes := slices.Contains(publishers, n.Name)
		hasDriver := slices.ContainsFunc(s.podsOf(componentDriver), func(p *corev1.Pod) bool { return p.Spec.NodeName == n.Name })
		switch {
		case !publishes && hasDriver:
			out = append(out, Finding{
				Level: Error, Object: "node " + n.Name, Problem: "a driver runs there but publishes nothing",
				Why:  "its GPUs are not used",
				Mend: "kubectl logs -n topodra-system -l app.kubernetes.io/component=driver --field-selector spec.nodeName=" + n.Name + "; or keep the driver off nodes without GPUs",
			})
		case !publishes && markedGPU(n):
			out = append(out, Finding{
				Level: Warning, Object: "node " + n.Name, Problem: "its labels say that it has NVIDIA GPUs, but none are published",
				Why: "its GPUs are not used", Mend: "let the driver run there: kubectl describe daemonset -n topodra-system topodra-driver",
			})
		case publishes && !nodeReady(n):
			out = append(out, Finding{
				Level: Warning, Object: "node " + n.Name, Problem: "it is not ready",
				Why: "pods that hold its GPUs may not run, and their GPUs are not free for others", Mend: "kubectl describe node " + n.Name,
			})
		}
	}
	return out
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true // nothing is known, as of simulated nodes
}

// checkPools looks at what makes the scheduler ignore a pool, or see it as it was.
func checkPools(s *Snapshot) []Finding {
	var out []Finding
	newest := map[string]int64{}
	for i := range s.Slices {
		p := &s.Slices[i].Spec.Pool
		newest[p.Name] = max(newest[p.Name], p.Generation)
	}
	byNode := map[string][]resourceapi.ResourceSlice{}
	for i := range s.Slices {
		spec := &s.Slices[i].Spec
		if spec.NodeName != nil {
			byNode[*spec.NodeName] = append(byNode[*spec.NodeName], s.Slices[i])
		}
		if spec.Pool.Generation < newest[spec.Pool.Name] {
			out = append(out, Finding{
				Level: Warning, Object: "slice " + s.Slices[i].Name, Problem: fmt.Sprintf("it is of generation %d of pool %q, which is at %d", spec.Pool.Generation, spec.Pool.Name, newest[spec.Pool.Name]),
				Why: "the driver did not finish an update; nobody uses this slice", Mend: "if it stays: kubectl delete resourceslice " + s.Slices[i].Name,
			})
		}
	}
	for _, name := range s.publishers() {
		nodes, err := livestate.Build(byNode[name], nil)
		if err != nil {
			out = append(out, Finding{
				Level: Error, Object: "node " + name, Problem: "the links of its GPUs cannot be read: " + err.Error(),
				Why: "its GPUs are allocated without regard to their links, and guarantees are refused there", Mend: "use drivers and schedulers of one version; kubectl get resourceslices -o yaml --field-selector spec.nodeName=" + name,
			})
			continue
		}
		for _, n := range nodes {
			for _, w := range n.Warnings {
				f := Finding{Level: Info, Object: "node " + name, Problem: w, Why: "the worse of two readings counts"}
				if strings.Contains(w, "incomplete") {
					f.Level, f.Why = Error, "schedulers pass over a pool that is not complete: none of its GPUs can be had"
					f.Mend = "kubectl logs -n topodra-system -l app.kubernetes.io/component=driver; a restart of the node's driver publishes everything again"
				}
				out = append(out, f)
			}
		}
	}
	return append(out, duplicates(s.Slices, newest)...)
}

// duplicates finds devices with one name in one pool.
func duplicates(published []resourceapi.ResourceSlice, newest map[string]int64) []Finding {
	var out []Finding
	seen := map[[2]string]int{}
	for i := range published {
		spec := &published[i].Spec
		if spec.Pool.Generation != newest[spec.Pool.Name] {
			continue
		}
		for k := range spec.Devices {
			key := [2]string{spec.Pool.Name, spec.Devices[k].Name}
			if seen[key]++; seen[key] == 2 {
				out = append(out, Finding{
					Level: Error, Object: "pool " + key[0], Problem: fmt.Sprintf("device %q is published twice", key[1]),
					Why:  "schedulers refuse a pool with two devices of one name",
					Mend: "see that one driver runs per node: kubectl get pods -A -o wide -l app.kubernetes.io/name=topodra,app.kubernetes.io/component=driver",
				})
			}
		}
	}
	return out
}
