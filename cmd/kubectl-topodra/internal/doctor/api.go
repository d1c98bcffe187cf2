// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/topodra/topodra/api"
)

// Versions of Kubernetes. Ours is what TopoDRA is built and tested with; older API servers lack fields that claims use. Kubelets
// without resource.k8s.io/v1 cannot prepare claims at all.
const (
	testedMajor  = 1
	testedMinor  = 37
	kubeletMinor = 34
)

func itoa(n int) string { return strconv.Itoa(n) }

func checkVersion(s *Snapshot) []Finding {
	v, err := version.ParseGeneric(s.GitVersion)
	if err != nil {
		return []Finding{{Level: Warning, Problem: fmt.Sprintf("the API server calls its version %q, which cannot be read", s.GitVersion),
			Why: "whether it is new enough is not known", Mend: "kubectl version"}}
	}
	tested := version.MajorMinor(testedMajor, testedMinor)
	switch mine := version.MajorMinor(v.Major(), v.Minor()); {
	case mine.LessThan(tested):
		return []Finding{{
			Level: Error, Problem: fmt.Sprintf("the API server runs %s, older than %d.%d", s.GitVersion, testedMajor, testedMinor),
			Why:  "it lacks, or has switched off, parts of Dynamic Resource Allocation that shared GPUs, taints and extended resources need",
			Mend: fmt.Sprintf("upgrade the control plane to %d.%d, for example: kubeadm upgrade plan", testedMajor, testedMinor),
		}}
	case tested.LessThan(mine):
		return []Finding{{
			Level: Warning, Problem: fmt.Sprintf("the API server runs %s, newer than %d.%d", s.GitVersion, testedMajor, testedMinor),
			Why:  "the scheduler is built from Kubernetes 1.37 and not tested against newer API servers",
			Mend: "install a release of TopoDRA for this version of Kubernetes",
		}}
	}
	return nil
}

// Probe is one question to the API server: is a field kept?
type Probe struct {
	// Gate is the feature gate behind the field, Field the field, Need what is lost without.
	Gate, Field, Need string
	// Optional fields are not needed by what is installed by default.
	Optional bool
	Kept     bool
	// Unknown says why there is no answer; empty if there is.
	Unknown string
}

func checkFields(s *Snapshot) []Finding {
	var out []Finding
	for _, p := range s.Probes {
		f := Finding{Object: "field " + p.Field}
		switch {
		case p.Unknown != "":
			f.Level, f.Problem = NotChecked, p.Unknown
		case p.Kept:
			continue
		default:
			f.Level, f.Problem, f.Why = Error, "the API server drops it without a word", p.Need
			if p.Optional {
				f.Level = Info
			}
			f.Mend = fmt.Sprintf("start kube-apiserver, kube-scheduler, kube-controller-manager and the kubelets with --feature-gates=%s=true, or leave it at its default", p.Gate)
		}
		out = append(out, f)
	}
	return out
}

func checkClasses(s *Snapshot) []Finding {
	var out []Finding
	parts := slices.ContainsFunc(s.Slices, hasParts)
	byResource := map[string][]string{}
	found := map[string]bool{}
	for i := range s.Classes {
		c := &s.Classes[i]
		if c.Name == api.DeviceClassGPU || c.Name == api.DeviceClassMIG {
			found[c.Name] = true
			selects := slices.ContainsFunc(c.Spec.Selectors, func(sel selector) bool { return sel.CEL != nil && strings.Contains(sel.CEL.Expression, api.DriverName) })
			if !selects {
				out = append(out, Finding{
					Level: Warning, Object: "class " + c.Name, Problem: "no selector of it mentions the driver " + api.DriverName,
					Why: "claims of this class may get devices of other drivers", Mend: "kubectl apply -f manifests/base/deviceclasses.yaml",
				})
			}
		}
		if r := c.Spec.ExtendedResourceName; r != nil {
			byResource[*r] = append(byResource[*r], c.Name)
		}
	}
	for _, name := range []string{api.DeviceClassGPU, api.DeviceClassMIG} {
		if found[name] {
			continue
		}
		f := Finding{
			Level: Error, Object: "class " + name, Problem: "it does not exist",
			Why: "pods that ask for it wait forever", Mend: "kubectl apply -f manifests/base/deviceclasses.yaml",
		}
		if name == api.DeviceClassMIG && !parts {
			f.Level = Info
			f.Why = "only MIG devices need it, and none are published"
		}
		out = append(out, f)
	}
	for r, names := range byResource {
		if len(names) > 1 && slices.Contains(names, api.DeviceClassGPU) {
			slices.Sort(names)
			out = append(out, Finding{
				Level: Warning, Object: "resource " + r, Problem: "several device classes answer it: " + strings.Join(names, ", "),
				Why:  "the newest of them wins, so pods may get devices of another driver",
				Mend: "remove extendedResourceName from all but one: kubectl edit deviceclass NAME",
			})
		}
	}
	return out
}
