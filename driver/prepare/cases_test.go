// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/topodra/topodra/api"
	"github.com/topodra/topodra/driver/checkpoint"
)

// TestCases is the matrix of docs/node.md: who may use what together, with NRI
// and without it. Claim "c" is the one that is prepared; "d" is another claim of
// the pod.
func TestCases(t *testing.T) {
	t.Parallel()
	enforcer := newHAMiCore(t)
	share := func(request string, gpu int) result { return result{request: request, gpu: gpu, memory: 10, cores: 20} }
	whole := func(request string, gpu int) result { return result{request: request, gpu: gpu} }
	one, two := share("one", 0), share("two", 1)
	for name, test := range map[string]struct {
		pods        [][]string
		c, d        []result
		withNRI     Reason
		withoutNRI  Reason
		noneLimited bool
	}{
		"01 one container, one claim":                 {pods: [][]string{{"app:a=c"}}, c: []result{one, two}},
		"02 two claims with shares in one container":  {pods: [][]string{{"app:a=c,d"}}, c: []result{one}, d: []result{share("d", 2)}, withoutNRI: ReasonNeedsNRI},
		"03 share and whole GPU of two claims":        {pods: [][]string{{"app:a=c,d"}}, c: []result{one}, d: []result{whole("d", 2)}, withoutNRI: ReasonNeedsNRI},
		"04 two claims, but of two containers":        {pods: [][]string{{"app:a=c", "app:b=d"}}, c: []result{one}, d: []result{share("d", 2)}},
		"05 two containers, a request each":           {pods: [][]string{{"app:a=c/one", "app:b=c/two"}}, c: []result{one, two}},
		"06 init has one of the app's requests":       {pods: [][]string{{"init:i=c/one", "app:a=c"}}, c: []result{one, two}, withoutNRI: ReasonNeedsNRI},
		"07 init and app, the same share":             {pods: [][]string{{"init:i=c", "app:a=c"}}, c: []result{one}, withoutNRI: ReasonNeedsNRI},
		"08 two inits, the same share":                {pods: [][]string{{"init:i=c", "init:k=c"}}, c: []result{one}, withoutNRI: ReasonNeedsNRI},
		"09 two apps, the same share":                 {pods: [][]string{{"app:a=c", "app:b=c"}}, c: []result{one}, withNRI: ReasonSharedByContainers, withoutNRI: ReasonSharedByContainers},
		"10 sidecar and app, the same share":          {pods: [][]string{{"sidecar:s=c", "app:a=c"}}, c: []result{one}, withNRI: ReasonSharedByContainers, withoutNRI: ReasonSharedByContainers},
		"11 sidecar and a later init":                 {pods: [][]string{{"sidecar:s=c", "init:i=c"}}, c: []result{one}, withNRI: ReasonSharedByContainers, withoutNRI: ReasonSharedByContainers},
		"12 init and a later sidecar":                 {pods: [][]string{{"init:i=c", "sidecar:s=c"}}, c: []result{one}, withoutNRI: ReasonNeedsNRI},
		"13 two sidecars":                             {pods: [][]string{{"sidecar:s=c", "sidecar:u=c"}}, c: []result{one}, withNRI: ReasonSharedByContainers, withoutNRI: ReasonSharedByContainers},
		"14 two pods, the same share":                 {pods: [][]string{{"app:a=c"}, {"app:a=c"}}, c: []result{one}, withNRI: ReasonSharedByContainers, withoutNRI: ReasonSharedByContainers},
		"15 two pods, a request each":                 {pods: [][]string{{"app:a=c/one"}, {"app:a=c/two"}}, c: []result{one, two}, withoutNRI: ReasonNeedsNRI},
		"16 whole GPUs in two apps":                   {pods: [][]string{{"app:a=c", "app:b=c"}}, c: []result{whole("one", 0)}, noneLimited: true},
		"17 whole GPUs in two pods":                   {pods: [][]string{{"app:a=c"}, {"app:a=c"}}, c: []result{whole("one", 0)}, noneLimited: true},
		"18 whole GPUs of two claims":                 {pods: [][]string{{"app:a=c,d"}}, c: []result{whole("one", 0)}, d: []result{whole("d", 1)}, noneLimited: true},
		"19 share and whole GPU of one claim":         {pods: [][]string{{"app:a=c"}}, c: []result{one, whole("two", 1)}},
		"20 whole GPU for all, share for one":         {pods: [][]string{{"app:a=c", "app:b=c/two"}}, c: []result{one, whole("two", 1)}},
		"21 two shares of one GPU":                    {pods: [][]string{{"app:a=c"}}, c: []result{share("one", 0), share("two", 0)}},
		"22 admin access by two apps":                 {pods: [][]string{{"app:a=c", "app:b=c"}}, c: []result{{request: "one", gpu: 0, admin: true}}, noneLimited: true},
		"23 no container refers to it":                {pods: [][]string{{"app:a=d"}}, c: []result{one}, d: []result{share("d", 2)}},
		"24 some requests of the claim, twice in one": {pods: [][]string{{"app:a=c/one,c/two"}}, c: []result{one, two}},
	} {
		for _, nri := range []bool{true, false} {
			f := newFixtureWith(t, enforcer)
			f.nri = nri
			var pods []*corev1.Pod
			for i, containers := range test.pods {
				pods = append(pods, podWith(fmt.Sprintf("pod%d", i), containers...))
				f.cluster.add(pods[i])
			}
			c := claim("c", pods, test.c...)
			f.cluster.add(c, claim("d", pods, test.d...))
			want := test.withoutNRI
			if nri {
				want = test.withNRI
			}
			_, err := f.manager().Prepare(t.Context(), c)
			if refusal, refused := errors.AsType[*Refusal](err); (want != "") != refused || (refused && refusal.Reason != want) || (err != nil && !refused) {
				t.Errorf("%s, NRI %t: got %v, want reason %q", name, nri, err, want)
			}
			if want != "" {
				if got := f.world(); len(got) > 0 {
					t.Errorf("%s, NRI %t: refused, but there is %q", name, nri, got)
				}
				continue
			}
			requireDelivered(t, name, f, c, nri, test.noneLimited)
		}
	}
}

// requireDelivered checks that each device with a limit is either armed in the
// spec or guarded, and none other is either.
func requireDelivered(t *testing.T, name string, f *fixture, c *resourceapi.ResourceClaim, nri, noneLimited bool) {
	t.Helper()
	record, spec := f.document().Claims[c.UID], f.spec(c.UID)
	if record.Limited() == noneLimited {
		t.Errorf("%s, NRI %t: limited is %t", name, nri, record.Limited())
	}
	for i := range record.Devices {
		limited := record.Devices[i].Limit != nil
		_, armed := env(spec, i)["CUDA_DEVICE_MEMORY_LIMIT_0"]
		guard := guarded(spec, i)
		switch {
		case !limited && (armed || guard):
			t.Errorf("%s, NRI %t: device %d has no limit, but armed %t, guarded %t", name, nri, i, armed, guard)
		case limited && nri && (armed || !guard):
			t.Errorf("%s, NRI: device %d is armed %t, guarded %t", name, i, armed, guard)
		case limited && !nri && armed == guard:
			t.Errorf("%s, no NRI: device %d is armed %t, guarded %t", name, i, armed, guard)
		}
	}
	want := checkpoint.DeliveryCDI
	switch {
	case noneLimited:
		want = checkpoint.DeliveryNone
	case nri:
		want = checkpoint.DeliveryNRI
	}
	if record.Delivery != want {
		t.Errorf("%s, NRI %t: delivery is %s, want %s", name, nri, record.Delivery, want)
	}
}

// TestD06_EachContainerCountsItsOwn: with a request each, both containers number
// from 0, and each gets its own limit and region.
func TestD06_EachContainerCountsItsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("p", "app:a=c/one", "app:b=c/two")
	c := claim("c", []*corev1.Pod{pod}, result{request: "one", gpu: 0, memory: 10}, result{request: "two", gpu: 1, memory: 20})
	f.cluster.add(pod, c)
	f.prepare(f.manager(), c)
	spec := f.spec(c.UID)
	regions := map[string]bool{}
	for i, memory := range []string{"10240m", "20480m"} {
		variables := env(spec, i)
		if variables["CUDA_DEVICE_MEMORY_LIMIT_0"] != memory || variables["CUDA_VISIBLE_DEVICES"] != "0" {
			t.Errorf("device %d: got %v", i, variables)
		}
		for _, mount := range spec.Devices[i].ContainerEdits.Mounts {
			if mount.ContainerPath == "/usr/local/vgpu/region" {
				regions[mount.HostPath] = true
			}
		}
	}
	if len(regions) != 2 {
		t.Errorf("two containers have regions %v", regions)
	}
}

// TestD05V03_EveryDeviceCarriesAllEdits: whichever devices of its requests a
// container's runtime looks at first, the edits are the same and complete.
func TestD05V03_EveryDeviceCarriesAllEdits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("p", "app:a=c")
	c := claim("c", []*corev1.Pod{pod}, result{request: "one", gpu: 3, memory: 10}, result{request: "two", gpu: 1, memory: 20}, result{request: "two", gpu: 0, memory: 30})
	f.cluster.add(pod, c)
	f.prepare(f.manager(), c)
	spec := f.spec(c.UID)
	for i := range spec.Devices {
		variables := env(spec, i)
		for number, want := range []string{"30720m", "20480m", "10240m"} {
			if got := variables[fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d", number)]; got != want {
				t.Errorf("device %d: limit %d is %q, want %q", i, number, got, want)
			}
		}
		if len(spec.Devices[i].ContainerEdits.Mounts) != 4 {
			t.Errorf("device %d has %d mounts", i, len(spec.Devices[i].ContainerEdits.Mounts))
		}
	}
}

// TestD04_ShareIsNotForTwoPods: the refusal says what to do instead.
func TestD04_ShareIsNotForTwoPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.nri = true
	pods := []*corev1.Pod{podWith("p", "app:a=c"), podWith("q", "app:b=c")}
	c := claim("c", pods, result{request: "one", gpu: 0, memory: 10})
	f.cluster.add(pods[0], pods[1], c)
	requireRefusal(t, f.manager(), c, ReasonSharedByContainers,
		`container "a" of pod "p" and container "b" of pod "q" can run at the same time and both use request "one", a share of GPU "GPU-aaaaaaaaaaaa-0"`)
	// A pod that has ended, or that another of its name has replaced, is no user.
	pods[1].Status.Phase = corev1.PodFailed
	f.prepare(f.manager(), c)
	pods[1].Status.Phase, pods[1].UID = corev1.PodRunning, "another"
	f.prepare(f.manager(), c)
	f.cluster.remove(pods[1])
	f.prepare(f.manager(), c)
}

// TestD11_D16_NoLimits: MIG devices, whole GPUs and admin access are not limited.
func TestD11_D16_NoLimits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		consumed map[string]int64
		device   Device
		want     *checkpoint.Limit
	}{
		"whole by memory":           {map[string]int64{"memory": 80 * gib, "cores": 0}, gpuDevice(0), nil},
		"whole whatever its cores":  {map[string]int64{"memory": 80 * gib, "cores": 50}, gpuDevice(0), nil},
		"exclusive":                 {nil, gpuDevice(0), nil},
		"MIG":                       {nil, migDevice(), nil},
		"share":                     {map[string]int64{"memory": 79 * gib, "cores": 100}, gpuDevice(0), &checkpoint.Limit{MemoryMiB: 79 * 1024, CoresPercent: 100}},
		"share, best effort":        {map[string]int64{"memory": 1 << 20}, gpuDevice(0), &checkpoint.Limit{MemoryMiB: 1}},
		"tiny is not unlimited":     {map[string]int64{"memory": 1}, gpuDevice(0), &checkpoint.Limit{MemoryMiB: 1}},
		"impossible cores are kept": {map[string]int64{"memory": gib, "cores": 1000}, gpuDevice(0), &checkpoint.Limit{MemoryMiB: 1024, CoresPercent: 100}},
	} {
		got := limitOf(test.consumed, test.device)
		if (got == nil) != (test.want == nil) || (got != nil && *got != *test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

// TestExtendedResources: claims that the scheduler makes for nvidia.com/gpu name
// their containers in the pod's status.
func TestExtendedResources(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("p", "app:a=x", "app:b=x")
	pod.Spec.ResourceClaims = nil
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c", RequestMappings: []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "a", ResourceName: "nvidia.com/gpu", RequestName: "container-0"}, {ContainerName: "b", ResourceName: "nvidia.com/gpu", RequestName: "container-1"}}}
	c := claim("c", []*corev1.Pod{pod}, result{request: "container-0", gpu: 0, memory: 10}, result{request: "container-1", gpu: 1, memory: 20})
	f.cluster.add(pod, c)
	f.prepare(f.manager(), c)
	var names []string
	for _, group := range f.document().Claims[c.UID].Groups {
		names = append(names, fmt.Sprint(group.Container, group.Devices))
	}
	if want := []string{"pod-p/a[0]", "pod-p/b[1]"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// TestContainerOverlap compares with the definition: containers run at the same
// time if their spans of life meet.
func TestContainerOverlap(t *testing.T) {
	t.Parallel()
	const end = 100
	span := func(c container) (from, to int) {
		switch c.kind {
		case kindInit:
			return c.order, c.order
		case kindSidecar:
			return c.order, end
		default:
			return end, end
		}
	}
	var all []container
	for order := range 4 {
		all = append(all, container{kind: kindInit, order: order}, container{kind: kindSidecar, order: order + 10})
	}
	all = append(all, container{kind: kindSidecar, order: 2}, container{kind: kindApp, name: "a"}, container{kind: kindApp, name: "b"})
	for i := range all {
		for j := range all {
			if i == j || (all[i].kind != kindApp && all[j].kind != kindApp && all[i].order == all[j].order) {
				continue
			}
			fromA, toA := span(all[i])
			fromB, toB := span(all[j])
			if got, want := all[i].overlaps(&all[j]), fromA <= toB && fromB <= toA; got != want {
				t.Errorf("%+v and %+v: got %t, want %t", all[i], all[j], got, want)
			}
		}
	}
	other := all[0]
	other.pod = "another pod"
	if !all[0].overlaps(&other) {
		t.Error("containers of two pods never run at the same time")
	}
}

// TestClaimsOfOthersDoNotCount: a claim of another driver in the same container
// needs no NRI; an API server that is away is no refusal.
func TestClaimsOfOthersDoNotCount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podWith("p", "app:a=c,nic,missing")
	c, nic := claim("c", []*corev1.Pod{pod}, result{request: "one", gpu: 0, memory: 10}), claim("nic", []*corev1.Pod{pod}, result{request: "one", gpu: 0})
	nic.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
	f.cluster.add(pod, c, nic)
	f.prepare(f.manager(), c)
	nic.Status.Allocation.Devices.Results[0].Driver = api.DriverName
	requireRefusal(t, f.manager(), c, ReasonNeedsNRI, `and also "nic"`)
	f.cluster.err = errors.New("connection refused")
	_, err := f.manager().Prepare(t.Context(), c)
	if _, refused := errors.AsType[*Refusal](err); refused || !errors.Is(err, f.cluster.err) || !strings.Contains(err.Error(), "finding out which containers use the claim") {
		t.Errorf("got error %v", err)
	}
}
