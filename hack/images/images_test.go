// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/topodra/topodra/hack/images/oci"
)

// fixture is a program of testdata, copied to a directory of its own.
func fixture(t *testing.T, name string, cgo bool) program {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	return program{name: name, path: ".", dir: dir, cgo: cgo, about: "a test"}
}

// unpack writes the files of an image below a directory.
func unpack(t *testing.T, image oci.Image) string {
	t.Helper()
	root := t.TempDir()
	for _, layer := range image.Layers {
		for _, file := range layer {
			path := filepath.Join(root, file.Path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, file.Content, os.FileMode(file.Mode)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// image compiles a program and puts its image together.
func image(t *testing.T, p program, architecture string) oci.Image {
	t.Helper()
	binary, err := compile(t.Context(), p, architecture, filepath.Join(t.TempDir(), "program"), "")
	if err != nil {
		t.Fatal(err)
	}
	out, err := assemble(t.Context(), p, architecture, binary, "1")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What is in an image is enough for its program: run with the image's loader and libraries and no others.
func TestProgramsRun(t *testing.T) {
	plain := unpack(t, image(t, fixture(t, "plain", false), runtime.GOARCH))
	if out, err := exec.CommandContext(t.Context(), filepath.Join(plain, "plain")).CombinedOutput(); err != nil || string(out) != "plain\n" {
		t.Errorf("plain: %q, %v", out, err)
	}
	root := unpack(t, image(t, fixture(t, "libc", true), runtime.GOARCH))
	here := platforms[runtime.GOARCH]
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, here.loader), "--inhibit-cache", "--library-path", filepath.Join(root, here.libraries), filepath.Join(root, "libc"))
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "libc\n" {
		t.Errorf("libc: %q, %v", out, err)
	}
}

// Two builds of the same source in different places give the same archive, for both architectures.
func TestTwoBuilds(t *testing.T) {
	archive := func() ([]byte, string) {
		var images []oci.Image
		for architecture := range platforms {
			images = append(images, image(t, fixture(t, "plain", false), architecture))
		}
		var out bytes.Buffer
		digest, err := oci.Write(&out, "plain:1", images)
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes(), digest
	}
	first, digest := archive()
	second, again := archive()
	if digest != again || !bytes.Equal(first, second) {
		t.Errorf("two builds have digests %s and %s", digest, again)
	}
	withLibrary := func() string {
		var out bytes.Buffer
		digest, err := oci.Write(&out, "libc:1", []oci.Image{image(t, fixture(t, "libc", true), runtime.GOARCH)})
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	if a, b := withLibrary(), withLibrary(); a != b {
		t.Errorf("two builds with the C library have digests %s and %s", a, b)
	}
}

// A program that would not run in its image is refused.
func TestCheck(t *testing.T) {
	withLibrary := fixture(t, "libc", true)
	binary, err := compile(t.Context(), withLibrary, runtime.GOARCH, filepath.Join(t.TempDir(), "program"), "")
	if err != nil {
		t.Fatal(err)
	}
	withLibrary.cgo = false
	if err := check(binary, withLibrary, runtime.GOARCH); err == nil || !strings.Contains(err.Error(), `needs libraries ["libc.so.6"]`) {
		t.Errorf("a program that needs the C library in an image without: %v", err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if err := check(binary, withLibrary, other); err == nil || !strings.Contains(err.Error(), "the program is for") {
		t.Errorf("a program for another architecture: %v", err)
	}
	if err := check([]byte("#!/bin/sh\n"), withLibrary, runtime.GOARCH); err == nil {
		t.Error("a script was taken for a program")
	}
}

func TestParse(t *testing.T) {
	for _, args := range [][]string{{}, {"--version", "1", "--architectures", "riscv64"}, {"--version", "1", "--programs", "topodra-demo"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
	o, err := parse([]string{"--version", "1", "--programs", "topodra-webhook,topodra-driver"})
	if err != nil || len(o.names) != 2 || len(o.architectures) != 2 {
		t.Errorf("got %+v, %v", o, err)
	}
}

// What nobody asked for is not built, and a failure leaves no archive.
func TestFailureLeavesNothing(t *testing.T) {
	out := t.TempDir()
	broken := program{name: "broken", path: "./nowhere", dir: t.TempDir()}
	if _, err := build(context.Background(), broken, "broken:1", options{out: out, version: "1", architectures: []string{runtime.GOARCH}}); err == nil {
		t.Error("it was built")
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 0 {
		t.Errorf("it left %v", entries)
	}
}
