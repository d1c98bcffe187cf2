// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/topodra/topodra/hack/images/oci"
)

// program is one of our programs that has an image.
type program struct {
	// name is that of the binary and of the image.
	name string
	// path is that of its package.
	path string
	// dir is the module that path is in; empty is the working directory.
	dir string
	// cgo programs get the C library into their image.
	cgo bool
	// root programs run as root, all others as nobody in particular.
	root bool
	// about is the description in the image's labels.
	about string
}

// programs that have an image.
var programs = []program{
	{name: "topodra-driver", path: "./cmd/driver", cgo: true, root: true, about: "Publishes the GPUs of a node and hands them to containers"},
	{name: "topodra-webhook", path: "./cmd/webhook", about: "Turns classic GPU requests into claims"},
	{name: "topodra-scheduler", path: "./cmd/scheduler", about: "kube-scheduler that chooses GPUs by their links"},
}

// options of the command line.
type options struct {
	out, version, prefix, ldflags string
	architectures, names          []string
}

func main() {
	if err := start(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "images: %v\n", err)
		os.Exit(1)
	}
}

// start does what the command line asks for, until a signal ends it.
func start(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(args)
	if err != nil {
		return err
	}
	return run(ctx, o)
}

// parse reads the command line.
func parse(args []string) (options, error) {
	var o options
	var architectures, names string
	fs := flag.NewFlagSet("images", flag.ContinueOnError)
	fs.StringVar(&o.out, "out", "bin/images", "Directory for the archives.")
	fs.StringVar(&o.version, "version", "", "Tag of the images.")
	fs.StringVar(&o.prefix, "prefix", "", "What comes before the programs' names in the names of images, such as registry.example.com/gpu/.")
	fs.StringVar(&o.ldflags, "ldflags", "", "Further flags for Go's linker.")
	fs.StringVar(&architectures, "architectures", "amd64,arm64", "For which architectures.")
	fs.StringVar(&names, "programs", "", "Which programs; all if empty.")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.architectures, o.names = strings.Split(architectures, ","), strings.Split(names, ",")
	if names == "" {
		o.names = nil
	}
	for _, architecture := range o.architectures {
		if _, known := platforms[architecture]; !known {
			return o, fmt.Errorf("--architectures: %q is not known", architecture)
		}
	}
	for _, name := range o.names {
		if !slices.ContainsFunc(programs, func(p program) bool { return p.name == name }) {
			return o, fmt.Errorf("--programs: %q is none that has an image", name)
		}
	}
	if o.version == "" {
		return o, errors.New("--version is missing")
	}
	return o, nil
}

// run builds everything that was asked for.
func run(ctx context.Context, o options) error {
	for _, p := range programs {
		if o.names != nil && !slices.Contains(o.names, p.name) {
			continue
		}
		name := o.prefix + p.name + ":" + o.version
		digest, err := build(ctx, p, name, o)
		if err != nil {
			return fmt.Errorf("building image %q: %w", name, err)
		}
		fmt.Fprintf(os.Stdout, "%s %s\n", digest, name)
	}
	return nil
}

// build builds a program for all architectures and writes its archive. It returns the digest of the image.
func build(ctx context.Context, p program, name string, o options) (string, error) {
	work, err := os.MkdirTemp("", "topodra-images-")
	if err != nil {
		return "", fmt.Errorf("making a directory: %w", err)
	}
	defer os.RemoveAll(work)
	var images []oci.Image
	for _, architecture := range o.architectures {
		binary, err := compile(ctx, p, architecture, filepath.Join(work, architecture), o.ldflags)
		if err != nil {
			return "", err
		}
		image, err := assemble(ctx, p, architecture, binary, o.version)
		if err != nil {
			return "", err
		}
		images = append(images, image)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return "", fmt.Errorf("making the directory of the archives: %w", err)
	}
	// Written beside and renamed, so that an archive is whole or not there.
	file, err := os.CreateTemp(o.out, "."+p.name+"-")
	if err != nil {
		return "", fmt.Errorf("making the archive: %w", err)
	}
	defer os.Remove(file.Name()) // fails if it was renamed
	digest, err := oci.Write(file, name, images)
	if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return "", err
	}
	return digest, os.Rename(file.Name(), filepath.Join(o.out, p.name+".tar"))
}
