// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/topodra/topodra/api"
)

// patience is how long a new pod may be without a word from its scheduler.
const patience = time.Minute

// leases are those by which copies of our scheduler agree who works, in the order of namespaces.
func (s *Snapshot) leases() []*coordinationv1.Lease {
	var found []*coordinationv1.Lease
	for i := range s.Leases {
		if s.Leases[i].Name == api.SchedulerName {
			found = append(found, &s.Leases[i])
		}
	}
	slices.SortFunc(found, func(a, b *coordinationv1.Lease) int { return strings.Compare(a.Namespace, b.Namespace) })
	return found
}

func sayingLeader(s *Snapshot) string {
	for _, l := range s.leases() {
		if l.Spec.HolderIdentity != nil {
			return fmt.Sprintf("%s is at work: it holds lease %s/%s", *l.Spec.HolderIdentity, l.Namespace, l.Name)
		}
	}
	return "pods of the scheduler are ready, without a leader election"
}

func checkScheduler(s *Snapshot) []Finding {
	found := s.leases()
	if len(found) == 0 {
		return schedulerWithoutLease(s)
	}
	var out []Finding
	var alive []*coordinationv1.Lease
	for _, l := range found {
		if late, held := expired(l, s.clock()); held && late <= 0 {
			alive = append(alive, l)
		}
	}
	if len(alive) == 0 {
		l := found[0]
		late, held := expired(l, s.clock())
		problem := "nobody holds it"
		if held {
			problem = fmt.Sprintf("its holder %q stopped renewing it %s ago", *l.Spec.HolderIdentity, late.Round(time.Second))
		}
		out = append(out, Finding{
			Level: Error, Object: "lease " + l.Namespace + "/" + l.Name, Problem: problem,
			Why: "no topodra-scheduler is at work: pods that name it wait", Mend: fmt.Sprintf("kubectl get pods -n %s -l app.kubernetes.io/component=scheduler; kubectl logs -n %s deploy/topodra-scheduler", l.Namespace, l.Namespace),
		})
	}
	if len(alive) > 1 {
		var names []string
		for _, l := range alive {
			names = append(names, l.Namespace+"/"+l.Name)
		}
		out = append(out, Finding{
			Level: Error, Object: "leases " + strings.Join(names, ", "), Problem: "two installations of the scheduler are at work",
			Why: "each thinks that the GPUs which it sees free are its own: they can book one GPU twice", Mend: "remove one: helm uninstall -n NAMESPACE topodra",
		})
	}
	return out
}

// expired tells how long ago a lease ended; negative while it lasts.
func expired(l *coordinationv1.Lease, now time.Time) (late time.Duration, held bool) {
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return 0, false
	}
	return now.Sub(l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second)), true
}

func schedulerWithoutLease(s *Snapshot) []Finding {
	pods := s.podsOf(componentScheduler)
	if slices.ContainsFunc(pods, ready) {
		return nil
	}
	f := Finding{
		Level: Warning, Problem: fmt.Sprintf("there is no lease %q in any namespace and no pod of the scheduler, so it cannot be told whether it runs", api.SchedulerName),
		Why: "pods that name it wait if it does not", Mend: "install it (README.md), with leader election",
	}
	if len(pods) > 0 {
		f.Level, f.Problem = Error, "its pods are not ready, and no lease says who is at work"
		f.Object, f.Mend = "pod "+pods[0].Namespace+"/"+pods[0].Name, fmt.Sprintf("kubectl logs -n %s %s", pods[0].Namespace, pods[0].Name)
	}
	return []Finding{f}
}

// checkWaiting finds pods that no scheduler has looked at.
func checkWaiting(s *Snapshot) []Finding {
	var waiting []*corev1.Pod
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.Spec.SchedulerName != api.SchedulerName || p.Spec.NodeName != "" || len(p.Spec.SchedulingGates) > 0 || p.DeletionTimestamp != nil ||
			p.Status.Phase != corev1.PodPending || s.clock().Sub(p.CreationTimestamp.Time) < patience ||
			slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }) {
			continue
		}
		waiting = append(waiting, p)
	}
	if len(waiting) == 0 {
		return nil
	}
	return []Finding{{
		Level: Error, Object: "pod " + waiting[0].Namespace + "/" + waiting[0].Name,
		Problem: fmt.Sprintf("it named scheduler %q more than a minute ago and no scheduler has looked at it; such pods in all: %d", api.SchedulerName, len(waiting)),
		Why:     "no scheduler of this name is at work", Mend: "kubectl get pods -A -l app.kubernetes.io/name=topodra,app.kubernetes.io/component=scheduler",
	}}
}

// checkVersions compares the versions of our pods.
func checkVersions(s *Snapshot) []Finding {
	byVersion := map[string][]string{}
	for i := range s.Pods {
		p := &s.Pods[i]
		c := componentOf(p)
		if c == "" || p.DeletionTimestamp != nil {
			continue
		}
		if v := versionOf(p); v != "" && !slices.Contains(byVersion[v], c) {
			byVersion[v] = append(byVersion[v], c)
		}
	}
	if len(byVersion) < 2 {
		return nil
	}
	var texts []string
	for v, components := range byVersion {
		slices.Sort(components)
		texts = append(texts, v+" ("+strings.Join(components, ", ")+")")
	}
	slices.Sort(texts)
	return []Finding{{
		Level: Warning, Problem: "several versions run at once: " + strings.Join(texts, ", "),
		Why: "fine during an update; if it stays, an update is stuck", Mend: "kubectl rollout status -n topodra-system daemonset/topodra-driver deployment/topodra-scheduler",
	}}
}

// versionOf is a pod's version by its label, or else by the tag of its first image.
func versionOf(p *corev1.Pod) string {
	if v := p.Labels[labelVersion]; v != "" {
		return v
	}
	if len(p.Spec.Containers) == 0 {
		return ""
	}
	image := p.Spec.Containers[0].Image
	if strings.Contains(image, "@") {
		return ""
	}
	at := strings.LastIndex(image, ":")
	if at < 0 || strings.Contains(image[at:], "/") {
		return ""
	}
	return image[at+1:]
}

// Policies that the chart installs, with what each prevents.
var wantedPolicies = []struct{ name, why string }{
	{"topodra-allocation", "another scheduler can allocate the same GPUs, which books them twice without anybody noticing"},
	{"topodra-device-status", "any driver or user with the right to write claims can say anything about our GPUs in their status"},
	{"topodra-resourceslices", "a driver that is not on a node can publish GPUs for it"},
}

func checkPolicies(s *Snapshot) []Finding {
	var out []Finding
	const mend = "install them: helm upgrade --install … --set policies.enabled=true, or kubectl apply -f manifests/policies/"
	for _, wanted := range wantedPolicies {
		at := slices.IndexFunc(s.Policies, func(p admissionv1.ValidatingAdmissionPolicy) bool { return p.Name == wanted.name })
		if at < 0 {
			out = append(out, Finding{Level: Warning, Object: "policy " + wanted.name, Problem: "it is not installed", Why: wanted.why, Mend: mend})
		}
	}
	for i := range s.Policies {
		if ours(&s.Policies[i].ObjectMeta) {
			out = append(out, s.policyInForce(&s.Policies[i], mend)...)
		}
	}
	return out
}

// policyInForce says what keeps a policy of ours from refusing what it should.
func (s *Snapshot) policyInForce(p *admissionv1.ValidatingAdmissionPolicy, mend string) []Finding {
	var out []Finding
	object := "policy " + p.Name
	denies, bound := false, false
	for k := range s.Bindings {
		if s.Bindings[k].Spec.PolicyName == p.Name {
			bound = true
			denies = denies || slices.Contains(s.Bindings[k].Spec.ValidationActions, admissionv1.Deny)
		}
	}
	why := "nothing is refused by it"
	for _, wanted := range wantedPolicies {
		if wanted.name == p.Name {
			why = wanted.why
		}
	}
	switch {
	case !bound:
		out = append(out, Finding{Level: Error, Object: object, Problem: "it is there, but no ValidatingAdmissionPolicyBinding puts it in force", Why: why, Mend: mend})
	case !denies:
		out = append(out, Finding{
			Level: Warning, Object: object, Problem: "its bindings warn or audit and do not deny", Why: why,
			Mend: "helm upgrade … --set policies.validationActions={Deny}",
		})
	}
	if p.Status.TypeChecking != nil && len(p.Status.TypeChecking.ExpressionWarnings) > 0 {
		out = append(out, Finding{
			Level: Warning, Object: object, Problem: "the API server doubts an expression of it: " + firstLine(p.Status.TypeChecking.ExpressionWarnings[0].Warning),
			Why: "it may refuse what it should let through", Mend: "use the policies of the installed release: kubectl apply -f manifests/policies/",
		})
	}
	return out
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
