// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// untar reads a tar file: what is in it by name, and the names in order.
func untar(t *testing.T, r io.Reader) (map[string]*tar.Header, map[string][]byte, []string) {
	t.Helper()
	headers, content := map[string]*tar.Header{}, map[string][]byte{}
	var order []string
	in := tar.NewReader(r)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return headers, content, order
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[header.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
		if headers[header.Name] != nil {
			t.Errorf("%q is there twice", header.Name)
		}
		headers[header.Name] = header
		order = append(order, header.Name)
	}
}

func example(architecture string) Image {
	return Image{
		Architecture: architecture, Entrypoint: []string{"/app"}, User: "65532:65532", Labels: map[string]string{"b": "2", "a": "1"},
		Layers: [][]File{
			{{Path: "/etc/passwd", Mode: 0o644, Content: []byte("nobody\n")}, {Path: "/etc/a/b", Mode: 0o600}, {Path: "/tmp/x", Mode: 0o600}, {Path: "/lib", Link: "usr/lib"}},
			{{Path: "/app", Mode: 0o755, Content: []byte(architecture)}},
		},
	}
}

func write(t *testing.T, images ...Image) ([]byte, string) {
	t.Helper()
	var out bytes.Buffer
	digest, err := Write(&out, "example.com/app:1", images)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), digest
}

// follow reads a blob by its descriptor and checks that it is what the descriptor says.
func follow(t *testing.T, blobs map[string][]byte, d descriptor, into any) []byte {
	t.Helper()
	data, found := blobs["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if !found {
		t.Fatalf("%s %s is missing", d.MediaType, d.Digest)
	}
	if int64(len(data)) != d.Size || digestOf(data) != d.Digest {
		t.Errorf("%s %s has %d bytes and digest %s", d.MediaType, d.Digest, len(data), digestOf(data))
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	return data
}

// An archive can be followed from its index to every file of every image, and holds nothing else.
func TestArchive(t *testing.T) {
	archive, digest := write(t, example("arm64"), example("amd64"))
	_, blobs, order := untar(t, bytes.NewReader(archive))
	if got := string(blobs["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` || order[0] != "oci-layout" {
		t.Errorf("the layout is %q, the first file is %q", got, order[0])
	}
	used := map[string]bool{"oci-layout": true, "index.json": true}
	use := func(d descriptor) { used["blobs/"+strings.Replace(d.Digest, ":", "/", 1)] = true }
	var layout, all index
	if err := json.Unmarshal(blobs["index.json"], &layout); err != nil {
		t.Fatal(err)
	}
	top := layout.Manifests[0]
	want := map[string]string{nameAnnotation: "example.com/app:1", refAnnotation: "1"}
	if diff := cmp.Diff(want, top.Annotations); diff != "" || top.Digest != digest || len(layout.Manifests) != 1 {
		t.Errorf("the layout has %+v, want %s; annotations: %s", layout.Manifests, digest, diff)
	}
	use(top)
	follow(t, blobs, top, &all)
	var architectures []string
	for _, d := range all.Manifests {
		use(d)
		architectures = append(architectures, d.Platform.Architecture)
		var m manifest
		var config configFile
		follow(t, blobs, d, &m)
		follow(t, blobs, m.Config, &config)
		use(m.Config)
		if config.Architecture != d.Platform.Architecture || config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/app"}) {
			t.Errorf("the configuration is %+v", config)
		}
		for i, l := range m.Layers {
			use(l)
			unpacked, err := gzip.NewReader(bytes.NewReader(follow(t, blobs, l, nil)))
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(unpacked)
			if err != nil {
				t.Fatal(err)
			}
			if digestOf(data) != config.RootFS.DiffIDs[i] {
				t.Errorf("layer %d has digest %s, the configuration says %s", i, digestOf(data), config.RootFS.DiffIDs[i])
			}
			headers, content, names := untar(t, bytes.NewReader(data))
			if i == 1 {
				if string(content["app"]) != config.Architecture || headers["app"].Mode != 0o755 {
					t.Errorf("the program is %q with mode %o", content["app"], headers["app"].Mode)
				}
				continue
			}
			if want := []string{"etc/", "etc/a/", "etc/a/b", "etc/passwd", "lib", "tmp/", "tmp/x"}; !slices.Equal(names, want) {
				t.Errorf("the base has %q, want %q", names, want)
			}
			if headers["tmp/"].Mode != 0o1777 || headers["etc/"].Mode != 0o755 || headers["lib"].Linkname != "usr/lib" {
				t.Errorf("the base has other modes or links: %+v", headers)
			}
		}
	}
	if !slices.Equal(architectures, []string{"amd64", "arm64"}) {
		t.Errorf("architectures are %q", architectures)
	}
	for _, name := range order {
		if !used[name] {
			t.Errorf("nothing refers to %q", name)
		}
	}
}

// The order in which images and files are given, and when, changes nothing.
func TestReproducible(t *testing.T) {
	first, digest := write(t, example("amd64"), example("arm64"))
	turned := example("arm64")
	slices.Reverse(turned.Layers[0])
	second, again := write(t, turned, example("amd64"))
	if !bytes.Equal(first, second) || digest != again {
		t.Errorf("two archives of the same files differ: %s, %s", digest, again)
	}
	changed := example("amd64")
	changed.Layers[1][0].Content = []byte("other")
	if _, other := write(t, changed, example("arm64")); other == digest {
		t.Error("another program has the same digest")
	}
}

func TestRefused(t *testing.T) {
	file := func(path string) []File { return []File{{Path: path, Mode: 0o644}} }
	for name, c := range map[string]struct {
		image Image
		ref   string
	}{
		"no tag":       {example("amd64"), "example.com:5000/app"},
		"empty tag":    {example("amd64"), "example.com/app:"},
		"no program":   {Image{Architecture: "amd64"}, "app:1"},
		"relative":     {Image{Architecture: "amd64", Entrypoint: []string{"/a"}, Layers: [][]File{file("etc/passwd")}}, "app:1"},
		"not clean":    {Image{Architecture: "amd64", Entrypoint: []string{"/a"}, Layers: [][]File{file("/etc/../passwd")}}, "app:1"},
		"root":         {Image{Architecture: "amd64", Entrypoint: []string{"/a"}, Layers: [][]File{file("/")}}, "app:1"},
		"twice":        {Image{Architecture: "amd64", Entrypoint: []string{"/a"}, Layers: [][]File{append(file("/a"), file("/a")...)}}, "app:1"},
		"file and dir": {Image{Architecture: "amd64", Entrypoint: []string{"/a"}, Layers: [][]File{append(file("/a/b"), file("/a")...)}}, "app:1"},
	} {
		if _, err := Write(io.Discard, c.ref, []Image{c.image}); err == nil {
			t.Errorf("%s: it was written", name)
		}
	}
}

func TestFullName(t *testing.T) {
	for name, want := range map[string]string{
		"app:1": "docker.io/library/app:1", "group/app:1": "docker.io/group/app:1", "example.com/app:1": "example.com/app:1",
		"localhost/app:1": "localhost/app:1", "host:5000/app:1": "host:5000/app:1",
	} {
		if got := fullName(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}

func ExampleWrite() {
	var archive bytes.Buffer
	digest, err := Write(&archive, "app:1", []Image{{Architecture: "amd64", Entrypoint: []string{"/app"}, Layers: [][]File{{{Path: "/app", Mode: 0o755}}}}})
	fmt.Println(len(digest), err)
	// Output: 71 <nil>
}
