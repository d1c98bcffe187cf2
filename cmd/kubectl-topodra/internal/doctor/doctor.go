// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK         Level = "ok"
	Info       Level = "info"
	NotChecked Level = "not checked"
	Warning    Level = "warning"
	Error      Level = "error"
)

// Exit statuses of the command. A snapshot that cannot be taken at all counts as an error.
const (
	ExitFine     = 0
	ExitWarnings = 1
	ExitErrors   = 2
)

// Finding is what one check found about one object. Its JSON form is an interface to other programs.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Object is such as "node a" or "claim ns/name"; empty for the cluster.
	Object  string `json:"object"`
	Problem string `json:"problem"`
	Why     string `json:"why"`
	// Mend is a command, or what to do where no command does it.
	Mend string `json:"mend"`
}

// Report is all findings, by check and object.
type Report struct {
	Findings []Finding `json:"findings"`
	// Errors, Warnings and NotChecked count them.
	Errors     int `json:"errors"`
	Warnings   int `json:"warnings"`
	NotChecked int `json:"notChecked"`
}

// Exit is the exit status that the report stands for.
func (r *Report) Exit() int {
	switch {
	case r.Errors > 0:
		return ExitErrors
	case r.Warnings > 0:
		return ExitWarnings
	default:
		return ExitFine
	}
}

// Resource names a list of the snapshot.
type Resource string

// The lists.
const (
	Version     Resource = "the version of the API server"
	ServerClock Resource = "the clock of the API server"
	Slices      Resource = "resourceslices"
	Claims      Resource = "resourceclaims"
	Classes     Resource = "deviceclasses"
	Nodes       Resource = "nodes"
	Pods        Resource = "pods"
	Leases      Resource = "leases"
	Policies    Resource = "validatingadmissionpolicies"
	Bindings    Resource = "validatingadmissionpolicybindings"
	Mutating    Resource = "mutatingwebhookconfigurations"
	Validating  Resource = "validatingwebhookconfigurations"
	Endpoints   Resource = "endpointslices"
	Secrets     Resource = "secrets"
)

// Snapshot is what a cluster looks like.
type Snapshot struct {
	// Now is the local time, ServerTime that of the API server at the same moment.
	Now, ServerTime time.Time
	// GitVersion is the API server's, such as "v1.37.2".
	GitVersion string
	Slices     []resourceapi.ResourceSlice // of our driver
	Claims     []resourceapi.ResourceClaim
	Classes    []resourceapi.DeviceClass
	Nodes      []corev1.Node
	Pods       []corev1.Pod
	Leases     []coordinationv1.Lease
	Policies   []admissionv1.ValidatingAdmissionPolicy
	Bindings   []admissionv1.ValidatingAdmissionPolicyBinding
	Mutating   []admissionv1.MutatingWebhookConfiguration
	Validating []admissionv1.ValidatingWebhookConfiguration
	Endpoints  []discoveryv1.EndpointSlice // of the namespaces of our webhooks' services
	Secrets    []corev1.Secret             // of the same namespaces
	Probes     []Probe
	// Unread says why a list could not be read.
	Unread map[Resource]string
}

// check is one thing that is looked at.
type check struct {
	name string
	// needs are lists without which the check says nothing.
	needs []Resource
	// fine is said when nothing is wrong.
	fine func(*Snapshot) string
	run  func(*Snapshot) []Finding
}

func saying(text string) func(*Snapshot) string { return func(*Snapshot) string { return text } }

// checks in the order in which they are reported.
func checks() []check {
	return []check{
		{"version", []Resource{Version}, func(s *Snapshot) string { return "the API server runs " + s.GitVersion }, checkVersion},
		{"fields", nil, saying("the API server keeps the fields that claims and devices need"), checkFields},
		{"classes", []Resource{Classes}, saying("the device classes are there"), checkClasses},
		{"kubelets", []Resource{Nodes, Slices}, saying("the kubelets of the GPU nodes are new enough"), checkKubelets},
		{"runtime", []Resource{Nodes, Slices}, saying("the container runtimes of the GPU nodes support CDI and NRI"), checkRuntimes},
		{"driver", []Resource{Slices}, sayingSlices, checkDriver},
		{"nodes", []Resource{Nodes, Slices}, saying("every GPU node that can be seen publishes its GPUs, and every publisher is a node"), checkNodes},
		{"pools", []Resource{Slices}, saying("every pool is complete and readable"), checkPools},
		{"scheduler", []Resource{Leases}, sayingLeader, checkScheduler},
		{"waiting", []Resource{Pods}, saying("no pod waits for a scheduler that is not there"), checkWaiting},
		{"versions", []Resource{Pods}, saying("the parts of TopoDRA that run as pods are of one version"), checkVersions},
		{"policies", []Resource{Policies, Bindings}, saying("the policies against double booking are in force"), checkPolicies},
		{"other allocators", []Resource{Nodes, Slices}, saying("nobody else advertises the GPUs that we publish"), checkOtherAllocators},
		{"other schedulers", []Resource{Pods, Claims}, saying("every pod with our GPUs names one scheduler"), checkOtherSchedulers},
		{"bookings", []Resource{Slices, Claims}, saying("no GPU is booked twice"), checkBookings},
		{"claims", []Resource{Claims}, saying("every claim with GPUs has a user, and every GPU in a claim is published"), checkClaims},
		{"clock", []Resource{ServerClock}, saying("clocks agree"), checkClocks},
		{"webhook", []Resource{Mutating, Validating}, sayingWebhook, checkWebhooks},
	}
}

// Examine runs all checks.
func Examine(s *Snapshot) *Report {
	r := &Report{Findings: []Finding{}}
	for _, c := range checks() {
		r.Findings = append(r.Findings, c.examine(s)...)
	}
	for _, f := range r.Findings {
		switch f.Level {
		case Error:
			r.Errors++
		case Warning:
			r.Warnings++
		case NotChecked:
			r.NotChecked++
		case OK, Info:
		}
	}
	return r
}

func (c *check) examine(s *Snapshot) []Finding {
	var missing []string
	for _, need := range c.needs {
		if reason, unread := s.Unread[need]; unread {
			missing = append(missing, reason)
		}
	}
	if len(missing) > 0 {
		return []Finding{{Check: c.name, Level: NotChecked, Problem: strings.Join(missing, "; ")}}
	}
	findings := c.run(s)
	for i := range findings {
		findings[i].Check = c.name
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank(b.Level), rank(a.Level)), strings.Compare(a.Object, b.Object), strings.Compare(a.Problem, b.Problem))
	})
	if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Level == Error || f.Level == Warning || f.Level == NotChecked }) {
		findings = append([]Finding{{Check: c.name, Level: OK, Problem: c.fine(s)}}, findings...)
	}
	return findings
}

func rank(l Level) int { return slices.Index([]Level{OK, Info, NotChecked, Warning, Error}, l) }

// has tells whether a list could be read.
func (s *Snapshot) has(r Resource) bool {
	_, unread := s.Unread[r]
	return !unread
}

// clock is the time by which leases and certificates are judged: the server's, if it is known.
func (s *Snapshot) clock() time.Time {
	if s.ServerTime.IsZero() {
		return s.Now
	}
	return s.ServerTime
}
