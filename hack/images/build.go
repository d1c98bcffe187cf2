// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/topodra/topodra/hack/images/oci"
)

// target is what differs between architectures.
type target struct {
	// compiler is the C compiler for it on a machine of another architecture, and the Debian packages that have it.
	compiler, packages string
	// loader is the path that programs have of the C library's loader, libraries is where the loader looks first.
	loader, libraries string
	machine           elf.Machine
}

// platforms by the name that Go and OCI have for an architecture. Paths are those of Debian, whose C library is taken.
var platforms = map[string]target{
	"amd64": {
		compiler: "x86_64-linux-gnu-gcc", packages: "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
		loader: "/lib64/ld-linux-x86-64.so.2", libraries: "/lib/x86_64-linux-gnu", machine: elf.EM_X86_64,
	},
	"arm64": {
		compiler: "aarch64-linux-gnu-gcc", packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
		loader: "/lib/ld-linux-aarch64.so.1", libraries: "/lib/aarch64-linux-gnu", machine: elf.EM_AARCH64,
	},
}

// libraries of the GNU C library that programs and NVIDIA's library refer to.
var libraries = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libnss_files.so.2", "libnss_dns.so.2"}

// user is the number of the user that programs without need for rights run as.
const user = "65532"

// compiler returns the C compiler for an architecture.
func compiler(architecture string) (string, error) {
	if architecture == runtime.GOARCH {
		return exec.LookPath("gcc")
	}
	t := platforms[architecture]
	program, err := exec.LookPath(t.compiler)
	if err != nil {
		return "", fmt.Errorf("looking for a C compiler for %s: %w; on Debian it comes with: apt-get install %s", architecture, err, t.packages)
	}
	return program, nil
}

// compile builds a program for an architecture into a file, and returns its content.
func compile(ctx context.Context, p program, architecture, file, ldflags string) ([]byte, error) {
	env := append(os.Environ(), "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0")
	if p.cgo {
		cc, err := compiler(architecture)
		if err != nil {
			return nil, err
		}
		env = append(env, "CGO_ENABLED=1", "CC="+cc)
	}
	// No paths, no state of the repository, no identifier of the build: two builds of one source are equal.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid= "+ldflags, "-o", file, p.path)
	cmd.Dir, cmd.Env = p.dir, env
	// What compilers say besides is of interest only if they fail.
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building %s for %s: %w: %s", p.path, architecture, err, bytes.TrimSpace(out))
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the program: %w", err)
	}
	return data, check(data, p, architecture)
}

// check makes sure that a program is for its architecture, and needs of libraries only what its image has.
func check(program []byte, p program, architecture string) error {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("reading the program: %w", err)
	}
	defer file.Close()
	if t := platforms[architecture]; file.Machine != t.machine {
		return fmt.Errorf("the program is for %s, want %s", file.Machine, t.machine)
	}
	needed, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("reading what the program needs: %w", err)
	}
	if !p.cgo && len(needed) > 0 {
		return fmt.Errorf("the program needs libraries %q, and its image has none", needed)
	}
	for _, library := range needed {
		if !strings.HasPrefix(library, "ld-linux-") && !slices.Contains(libraries, library) {
			return fmt.Errorf("the program needs library %q, which its image does not have", library)
		}
	}
	return nil
}

// assemble puts the image of a program together.
func assemble(ctx context.Context, p program, architecture string, binary []byte, version string) (oci.Image, error) {
	image := oci.Image{
		Architecture: architecture, Entrypoint: []string{"/" + p.name},
		Labels: map[string]string{
			"org.opencontainers.image.title": p.name, "org.opencontainers.image.description": p.about,
			"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": "https://github.com/topodra/topodra",
		},
	}
	base := []oci.File{
		{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:" + user + ":" + user + ":nonroot:/:/sbin/nologin\n")},
		{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnonroot:x:" + user + ":\n")},
		{Path: "/etc/nsswitch.conf", Mode: 0o644, Content: []byte("hosts: files dns\n")},
	}
	if p.cgo {
		files, err := cLibrary(ctx, architecture)
		if err != nil {
			return image, err
		}
		base = append(base, files...)
	}
	if !p.root {
		image.User = user + ":" + user
	}
	image.Layers = [][]oci.File{base, {{Path: "/" + p.name, Mode: 0o755, Content: binary}}}
	return image, nil
}

// cLibrary returns the C library that the compiler for an architecture links with, at the paths where its loader looks.
func cLibrary(ctx context.Context, architecture string) ([]oci.File, error) {
	cc, err := compiler(architecture)
	if err != nil {
		return nil, err
	}
	t := platforms[architecture]
	var files []oci.File
	add := func(name, destination string, mode int64) error {
		out, err := exec.CommandContext(ctx, cc, "-print-file-name="+name).Output()
		if err != nil {
			return fmt.Errorf("asking %q for %q: %w", cc, name, err)
		}
		from := strings.TrimSpace(string(out))
		if !filepath.IsAbs(from) {
			return fmt.Errorf("the C library for %s has no %q: on Debian it comes with: apt-get install %s", architecture, name, t.packages)
		}
		content, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("reading the C library: %w", err)
		}
		files = append(files, oci.File{Path: destination, Mode: mode, Content: content})
		return nil
	}
	errs := []error{add(path.Base(t.loader), t.loader, 0o755)}
	for _, name := range libraries {
		errs = append(errs, add(name, t.libraries+"/"+name, 0o644))
	}
	return files, errors.Join(errs...)
}
