// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkDistinct fails the test if a GPU is there twice.
func (f *fixture) checkDistinct(groups ...[]share) {
	f.Helper()
	seen := map[string]bool{}
	for _, group := range groups {
		for _, uuid := range uuidsOf(group) {
			if seen[uuid] {
				f.Errorf("GPU %q is there twice in %v", uuid, groups)
			}
			seen[uuid] = true
		}
	}
}

// checkCount fails the test if a container should not have as many GPUs as the test asked for.
func (f *fixture) checkCount(got []share, want int) {
	f.Helper()
	if len(got) != want {
		f.Errorf("GPUs: got %v, want %d", got, want)
	}
}

// TestWholeGPUs: GPUs that a claim takes whole have no preload at all, and no two containers have the same one.
func TestWholeGPUs(t *testing.T) {
	f := newFixture(t)
	f.claim("one", request{})
	f.claim("four", request{count: 4})
	one := f.check(f.run(f.simplePod("one", "one")), "main")
	four := f.check(f.run(f.simplePod("four", "four")), "main")
	f.checkCount(one, 1)
	f.checkCount(four, 4)
	f.checkDistinct(one, four)
}

// TestTwoPodsShareOneGPU: both are armed with their own limit as number 0, with a region of their own, and the scheduler
// packs them on one GPU.
func TestTwoPodsShareOneGPU(t *testing.T) {
	f := newFixture(t)
	f.claim("small", request{memory: "2Gi", cores: "30"})
	f.claim("large", request{memory: "5Gi"})
	small := f.run(f.simplePod("small", "small"))
	large := f.run(f.simplePod("large", "large"))
	first, second := f.check(small, "main"), f.check(large, "main")
	if diff := cmp.Diff(uuidsOf(first), uuidsOf(second)); diff != "" || len(first) != 1 {
		t.Errorf("GPUs: want both pods on the same one (-small +large):\n%s", diff)
	}
	if first[0].MemoryMiB != 2048 || first[0].Cores != 30 || second[0].MemoryMiB != 5120 || second[0].Cores != 100 {
		t.Errorf("shares: got %+v and %+v, want 2 GiB with 30%% and 5 GiB with all compute", first, second)
	}
	regions := f.regions()
	if len(regions) != 2 {
		t.Errorf("regions: got %v, want one per container", regions)
	}
	for id, reports := range regions {
		if len(reports) != 1 { // check has run the program once in each container
			t.Errorf("region of container %q: got reports %+v, want one", id, reports)
		}
		f.checkReserved(id)
	}
	f.checkRecords(f.record(small, "main", "small"), f.record(large, "main", "large"))
	// The other pod is none the worse when the first one goes.
	f.remove("small")
	f.check(large, "main")
	if regions := f.regions(); len(regions) != 1 {
		t.Errorf("regions after one of two pods went: got %v, want one", regions)
	}
	f.checkRecords(f.record(large, "main", "large"))
}

// TestSharesOfSeveralGPUs: limits are numbered in the order of PCI addresses, also where that is not the order of requests.
func TestSharesOfSeveralGPUs(t *testing.T) {
	f := newFixture(t)
	// Different amounts, so that a swap shows. Whole GPUs and shares in one container count together.
	f.claim("mixed",
		request{name: "c", memory: "3Gi", cores: "40"}, request{name: "a", count: 2, memory: "12Gi"},
		request{name: "d", memory: "13Gi", cores: "25"}, request{name: "b"})
	got := f.check(f.run(f.simplePod("mixed", "mixed")), "main")
	limited := 0
	for _, s := range got {
		if s.Limited {
			limited++
		}
	}
	if len(got) < 4 || limited != len(got)-1 {
		t.Errorf("GPUs: got %+v, want at least four, one of them without limit", got)
	}
}

// TestTwoClaimsInOneContainer: numbers count over all claims of the container.
func TestTwoClaimsInOneContainer(t *testing.T) {
	f := newFixture(t)
	f.claim("large", request{count: 2, memory: "12Gi"})
	f.claim("huge", request{count: 2, memory: "14Gi", cores: "60"})
	got := f.check(f.run(f.simplePod("pod", "large", "huge")), "main")
	f.checkCount(got, 4)
	f.checkDistinct(got)
}

// TestTwoSharesOfOneGPUInOneContainer: the container has one limit, which is the sum.
func TestTwoSharesOfOneGPUInOneContainer(t *testing.T) {
	f := newFixture(t)
	f.claim("first", request{memory: "2Gi", cores: "20"})
	f.claim("second", request{memory: "3Gi", cores: "30"})
	got := f.check(f.run(f.simplePod("pod", "first", "second")), "main")
	if len(got) != 1 || got[0].MemoryMiB != 5120 || got[0].Cores != 50 {
		t.Errorf("shares: got %+v, want one of 5 GiB and 50%%", got)
	}
}

// TestRequestsForContainers: each container counts its own GPUs from 0, and sees no other.
func TestRequestsForContainers(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{name: "a", memory: "12Gi"}, request{name: "b", count: 2, memory: "14Gi"}, request{name: "c"})
	pod := f.run(f.pod("pod", nil, nil, []box{
		{name: "a", uses: []use{{"claim", "a"}}},
		{name: "b", uses: []use{{"claim", "b"}}},
		{name: "c", uses: []use{{"claim", "c"}}},
		{name: "none"},
	}))
	a, b, c := f.check(pod, "a"), f.check(pod, "b"), f.check(pod, "c")
	f.checkCount(a, 1)
	f.checkCount(b, 2)
	f.checkCount(c, 1)
	f.checkDistinct(a, b, c)
	f.checkCount(f.check(pod, "none"), 0)
	if regions := f.regions(); len(regions) != 2 {
		t.Errorf("regions: got %v, want one for each of the two containers with limits", regions)
	}
}

// TestWholeGPUSharedByContainers: a GPU that is taken whole may be in several containers, and in several pods.
func TestWholeGPUSharedByContainers(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{count: 2})
	uses := []use{{claim: "claim"}}
	first := f.run(f.pod("first", nil, []box{{name: "sidecar", uses: uses}}, []box{{name: "a", uses: uses}, {name: "b", uses: uses}}))
	second := f.run(f.simplePod("second", "claim"))
	want := uuidsOf(f.check(first, "a"))
	for _, got := range [][]share{f.check(first, "b"), f.check(first, "sidecar"), f.check(second, "main")} {
		if diff := cmp.Diff(want, uuidsOf(got)); diff != "" || len(want) != 2 {
			t.Errorf("GPUs of the containers differ (-a +other):\n%s", diff)
		}
	}
	// The claim stays prepared for the pod that stays.
	f.remove("first")
	f.check(second, "main")
}

// TestShareOfInitAndAppContainer: they never run at the same time, so both may have all of the share, each with its own region.
func TestShareOfInitAndAppContainer(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{memory: "4Gi", cores: "50"})
	uses := []use{{claim: "claim"}}
	pod := f.run(f.pod("pod", []box{{name: "init", uses: uses, command: viewCommand}}, nil, []box{{name: "main", uses: uses}}))
	f.checkView(pod, "init", f.lookBack(pod, "init"), f.expected(pod, "init"))
	f.checkCount(f.check(pod, "main"), 1)
}

// TestSidecarWithOwnRequest: a sidecar is armed like any other container.
func TestSidecarWithOwnRequest(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{name: "work", memory: "12Gi"}, request{name: "side", memory: "1Gi", cores: "5"})
	pod := f.run(f.pod("pod", nil, []box{{name: "sidecar", uses: []use{{"claim", "side"}}}}, []box{{name: "main", uses: []use{{"claim", "work"}}}}))
	f.checkCount(f.check(pod, "main"), 1)
	f.checkCount(f.check(pod, "sidecar"), 1)
}

// TestRefusedShares: a share that two containers would use at the same time could be exceeded twofold. The pod does not
// start, the event says why and what to change, and others are not affected.
func TestRefusedShares(t *testing.T) {
	uses := []use{{claim: "claim"}}
	for name, build := range map[string]func(f *fixture) *corev1.Pod{
		"two containers": func(f *fixture) *corev1.Pod {
			return f.pod("pod", nil, nil, []box{{name: "a", uses: uses}, {name: "b", uses: uses}})
		},
		"sidecar and app": func(f *fixture) *corev1.Pod {
			return f.pod("pod", nil, []box{{name: "a", uses: uses}}, []box{{name: "b", uses: uses}})
		},
		"sidecar before init": sidecarBeforeInit,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.claim("claim", request{memory: "4Gi"})
			f.create(build(f))
			f.eventually("claim", "SharedByContainers", `container "a"`, `container "b"`, "give each its own request")
			f.eventually("pod", "FailedPrepareDynamicResources", "can run at the same time")
			f.claim("other", request{memory: "4Gi"})
			f.check(f.run(f.simplePod("other", "other")), "main")
		})
	}
}

// sidecarBeforeInit has a sidecar that runs while an init container does.
func sidecarBeforeInit(f *fixture) *corev1.Pod {
	pod := f.pod("pod", nil, []box{{name: "a", uses: []use{{claim: "claim"}}}}, []box{{name: "main"}})
	init := box{name: "b", uses: []use{{claim: "claim"}}, command: viewCommand}
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, init.container())
	return pod
}

// TestShareOfTwoPods: the second pod is refused, the first one is not disturbed. The kubelet asks the driver to prepare a
// claim once, so it is the making of the container that is refused.
func TestShareOfTwoPods(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{memory: "4Gi"})
	first := f.run(f.simplePod("first", "claim"))
	f.create(f.simplePod("second", "claim"))
	f.eventually("second", "GPULimitsNotSet", `container "main" of pod "first"`, `container "main" of pod "second"`)
	f.check(first, "main")
	// When the first has gone, the second may have it.
	f.remove("first")
	f.check(f.running("second"), "main")
}

// TestTenantCannotLift: variables and files of the pod or its image do not change the limits.
func TestTenantCannotLift(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{memory: "4Gi", cores: "50"})
	pod := f.pod("pod", nil, nil, []box{{uses: []use{{claim: "claim"}}, env: map[string]string{
		"CUDA_DEVICE_MEMORY_LIMIT_0": "100g", "CUDA_DEVICE_SM_LIMIT_0": "100", "CUDA_DEVICE_MEMORY_LIMIT": "100g",
		"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/mine", "CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
		"GPU_CORE_UTILIZATION_POLICY": "DISABLE", "CUDA_DISABLE_CONTROL": "true",
	}}})
	pod = f.run(pod)
	f.check(pod, "main")
	got := f.look(pod, "main").env
	if got["GPU_CORE_UTILIZATION_POLICY"] == "DISABLE" || got["CUDA_DEVICE_MEMORY_LIMIT"] == "100g" || got["CUDA_DISABLE_CONTROL"] != "" {
		t.Errorf("environment: got %v, want nothing of the pod's own in what the library reads", got)
	}
	if result, err := f.node.Exec(f.ctx, pod, "main", "sh", "-c", "echo x=y > /overrideEnv; echo > "+preloadFile+"; echo > "+libraryFile); err != nil || result.ExitCode == 0 {
		t.Errorf("writing to what arms the container: got %+v, %v, want a refusal", result, err)
	}
}

// TestContainerRestart: a container that starts anew within its pod is armed again.
func TestContainerRestart(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{count: 2, memory: "12Gi"})
	pod := f.run(f.simplePod("pod", "claim"))
	before := f.check(pod, "main")
	f.killContainer(pod)
	pod = f.restarted("pod")
	if diff := cmp.Diff(before, f.check(pod, "main")); diff != "" {
		t.Errorf("shares after a restart of the container (-before +after):\n%s", diff)
	}
}

// TestClaimTemplate: claims that are made for a pod work and go with it.
func TestClaimTemplate(t *testing.T) {
	f := newFixture(t)
	f.makeTemplate("template", request{memory: "4Gi"})
	pod := f.run(f.templatePod("pod", "template"))
	f.checkCount(f.check(pod, "main"), 1)
}

// TestFillAndRefill: what is not used any more can be used again: the GPUs are filled twice.
func TestFillAndRefill(t *testing.T) {
	f := newFixture(t)
	for _, round := range []string{"first", "second"} {
		f.claim(round, request{count: gpuCount})
		f.checkCount(f.check(f.run(f.simplePod(round, round)), "main"), gpuCount)
		f.remove(round)
		f.removeClaim(round)
		f.waitFor("nothing to be left", f.nothingLeft)
	}
}

// TestClaimStatus: the claim tells which devices it has, and what their limits are.
func TestClaimStatus(t *testing.T) {
	f := newFixture(t)
	f.claim("claim", request{memory: "4Gi", cores: "50"})
	pod := f.run(f.simplePod("pod", "claim"))
	want := f.check(pod, "main")
	f.waitFor("the claim's device status", func() error {
		claim := f.claimOf(pod, "claim")
		i := slices.IndexFunc(claim.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
			return d.Data != nil && strings.Contains(string(d.Data.Raw), want[0].UUID) && d.ShareID != nil &&
				slices.ContainsFunc(d.Conditions, func(c metav1.Condition) bool { return c.Type == "Ready" && c.Status == metav1.ConditionTrue })
		})
		if i < 0 {
			return errNotYet
		}
		return nil
	})
}

// TestNoClaim: a container without claims has nothing of ours, beside one that has.
func TestNoClaim(t *testing.T) {
	f := newFixture(t)
	f.checkCount(f.check(f.run(f.simplePod("pod")), "main"), 0)
}
