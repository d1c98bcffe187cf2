// SPDX-License-Identifier: Apache-2.0

package classic

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxDistance is how many changed, added, missing or swapped characters still look like a slip.
const maxDistance = 2

// nearMisses warns about keys that look like words of the vocabulary in the wrong place or misspelled: such keys have no
// effect, and a pod that has one gets something else than its author meant.
func (v *Vocabulary) nearMisses(pod *corev1.Pod) []string {
	var warnings []string
	for _, place := range []struct {
		what string
		keys map[string]string
	}{{"annotation", pod.Annotations}, {"label", pod.Labels}} {
		for _, key := range slices.Sorted(maps.Keys(place.keys)) {
			if text := v.misplaced(place.what, key); text != "" {
				warnings = append(warnings, text)
			}
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			warnings = append(warnings, v.misspelledResources(&list[i])...)
		}
	}
	return warnings
}

// misplaced returns what is wrong with the key of an annotation or label, or nothing.
func (v *Vocabulary) misplaced(what, key string) string {
	if what == "label" && key == string(v.Resources.GPU) {
		return "" // a common label of pods that want GPUs
	}
	for _, name := range v.Resources.names() {
		if key == string(name) || key == base(string(name)) && telling(key) {
			return fmt.Sprintf("%s %q has no effect: it is a resource, write %q under resources.limits of a container", what, key, name)
		}
	}
	if slices.Contains(knownAnnotations(), key) {
		if what == "annotation" {
			return ""
		}
		return fmt.Sprintf("%s %q has no effect: it is an annotation", what, key)
	}
	for _, known := range knownAnnotations() {
		if base(key) == base(known) || prefix(key) == prefix(known) && distance(key, known) <= maxDistance {
			return fmt.Sprintf("%s %q has no effect: did you mean annotation %q?", what, key, known)
		}
	}
	return ""
}

// misspelledResources warns about resources that have a word's prefix and nearly its name.
func (v *Vocabulary) misspelledResources(container *corev1.Container) []string {
	keys := map[string]bool{}
	for _, amounts := range []corev1.ResourceList{container.Resources.Limits, container.Resources.Requests} {
		for name := range amounts {
			keys[string(name)] = true
		}
	}
	var warnings []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if slices.Contains(v.Resources.names(), corev1.ResourceName(key)) {
			continue
		}
		for _, name := range v.Resources.names() {
			if key == base(string(name)) && telling(key) || prefix(key) == prefix(string(name)) && prefix(key) != "" && distance(key, string(name)) <= maxDistance {
				warnings = append(warnings, fmt.Sprintf("container %q: resource %q is none that GPUs are asked for with: did you mean %q?", container.Name, key, name))
				break
			}
		}
	}
	return warnings
}

// prefix returns what precedes the slash of a key, base what follows it.
func prefix(key string) string {
	before, _, found := strings.Cut(key, "/")
	if !found {
		return ""
	}
	return before
}

func base(key string) string {
	_, after, found := strings.Cut(key, "/")
	if !found {
		return key
	}
	return after
}

// telling says whether a key without a prefix means a GPU. "gpu" and "priority" are common words for other things.
func telling(key string) bool { return key != "gpu" && key != "priority" }

// distance is the least number of characters to change, add, remove or swap with the next one to turn a into b.
func distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	older, old, row := rows[0], rows[1], rows[2]
	for j := range old {
		old[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(old[j]+1, row[j-1]+1, old[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, old, row = old, row, older
	}
	return old[len(b)]
}
