// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/topodra/topodra/test/cluster"
)

const (
	// PauseRef is the image of the pods' sandboxes.
	PauseRef = "docker.io/local/pause:1"
	// BusyboxRef is what [BusyboxImage] makes.
	BusyboxRef = "docker.io/local/busybox:1"

	// busyboxPath is where Debian's package busybox-static puts its program.
	busyboxPath = "/bin/busybox"
	// importTimeout bounds what takes a second on an idle machine.
	importTimeout = 2 * time.Minute
)

// PauseImage builds the program that holds a pod's namespaces, statically linked, in dir, and returns an image of it.
func PauseImage(ctx context.Context, dir string) (Image, error) {
	root, err := cluster.RepoRoot()
	if err != nil {
		return Image{}, fmt.Errorf("building the pause program: %w", err)
	}
	program := filepath.Join(dir, "pause")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "./test/node/pause")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return Image{}, fmt.Errorf("building the pause program: %w: %s", err, bytes.TrimSpace(output))
	}
	return Image{Ref: PauseRef, Files: []File{{Path: "/pause", Source: program}}, Entrypoint: []string{"/pause"}}, nil
}

// BusyboxImage returns an image with all of busybox's commands, and a /tmp, under a name with a tag. Add further files as
// you like.
func BusyboxImage(ctx context.Context, ref string) (Image, error) {
	list, err := exec.CommandContext(ctx, busyboxPath, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("asking busybox for its commands: %w", err)
	}
	image := Image{
		Ref: ref, Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/usr/bin:/bin"},
		Files: []File{
			{Path: "/bin/busybox", Source: busyboxPath},
			{Path: "/tmp", Dir: true, Mode: 0o777 | os.ModeSticky},
			{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/:/bin/sh\n"), Mode: 0o644},
		},
	}
	for command := range strings.FieldsSeq(string(list)) {
		if command != "busybox" {
			image.Files = append(image.Files, File{Path: "/bin/" + command, Link: "busybox"})
		}
	}
	return image, nil
}

// ImportImage puts an image into containerd's store. Pods that use it need imagePullPolicy Never.
func (n *Node) ImportImage(ctx context.Context, image Image) (err error) {
	f, err := os.CreateTemp(n.path("images"), "*.tar")
	if err != nil {
		return fmt.Errorf("importing image %q: %w", image.Ref, err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if err := errors.Join(image.Archive(f), f.Close()); err != nil {
		return fmt.Errorf("importing image %q: %w", image.Ref, err)
	}
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	_, err = n.Command(ctx, filepath.Join(n.opts.BinDir, Ctr),
		"--address="+n.ContainerdSocket(), "--namespace=k8s.io", "images", "import", f.Name())
	if err != nil {
		return fmt.Errorf("importing image %q: %w", image.Ref, err)
	}
	return n.waitForImage(ctx, image.Ref)
}

// waitForImage waits until the kubelet's interface knows an image that ctr has imported: it learns of it by an event.
func (n *Node) waitForImage(ctx context.Context, ref string) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		found, err := n.cri.hasImage(ctx, ref)
		if err != nil || found {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for image %q: %w", ref, context.Cause(ctx))
		}
	}
}
