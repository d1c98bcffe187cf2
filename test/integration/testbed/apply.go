// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// ApplyFile creates the objects of a manifest in the namespace of the scene.
func (s *Scene) ApplyFile(file string) {
	s.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			s.t.Fatalf("reading %q: %v", file, err)
		}
		metadata, ok := object["metadata"].(map[string]any)
		if !ok {
			s.t.Fatalf("reading %q: a document has no metadata", file)
		}
		metadata["namespace"] = s.Namespace
		changed, err := yaml.Marshal(object)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := s.Cluster.ApplyYAML(s.t.Context(), changed); err != nil {
			s.t.Fatalf("applying %q: %v", file, err)
		}
	}
}
