// SPDX-License-Identifier: Apache-2.0

// Command generate copies Kubernetes' DRA integration suite out of the module
// cache and makes its scheduler run with our plugins.
//
// Usage: generate DIRECTORY-OF-k8s.io/kubernetes TARGET
//
// It stops with an error when the suite no longer looks as expected: a suite that
// silently ran with the in-tree plugin would prove nothing.
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// suitePath is where the suite is in the Kubernetes module.
const suitePath = "test/integration/dra"

//go:embed plugin.go.txt
var pluginSource string

//go:embed run_test.go.txt
var runSource string

// replacement changes one place of one file.
type replacement struct {
	file, old, new string
}

// replacements hand our registry and configuration to the scheduler.
var replacements = []replacement{{
	file: "dra.go",
	old:  "_, scheduler.informerFactory = util.StartScheduler(schedulerCtx, cfg, nil)",
	new:  "_, scheduler.informerFactory = util.StartScheduler(schedulerCtx, topodraConfig(schedulerCtx, cfg), topodraRegistry())",
}}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: generate DIRECTORY-OF-k8s.io/kubernetes TARGET")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// generate writes the package dra and the test that runs it.
func generate(kubernetes, target string) error {
	if err := os.RemoveAll(target); err != nil {
		return fmt.Errorf("removing the old suite: %w", err)
	}
	suite := filepath.Join(target, "dra")
	if err := os.MkdirAll(suite, 0o755); err != nil {
		return fmt.Errorf("making %q: %w", suite, err)
	}
	source := filepath.Join(kubernetes, suitePath)
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return fmt.Errorf("listing %q: %w", source, err)
	}
	copied := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			// The tests of the package itself are about the API alone.
			continue
		}
		if err := copyFile(file, suite); err != nil {
			return err
		}
		copied++
	}
	if copied == 0 {
		return fmt.Errorf("reading the suite: no Go files in %q", source)
	}
	return errors.Join(
		write(filepath.Join(suite, "topodra.go"), pluginSource),
		write(filepath.Join(suite, "run_test.go"), runSource),
	)
}

// copyFile copies a file with its replacements.
func copyFile(file, target string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the suite: %w", err)
	}
	text, name := string(data), filepath.Base(file)
	for _, r := range replacements {
		if r.file != name {
			continue
		}
		if n := strings.Count(text, r.old); n != 1 {
			return fmt.Errorf("rewriting %s: found %d times what has to be replaced, expected once: %s", name, n, r.old)
		}
		text = strings.Replace(text, r.old, r.new, 1)
	}
	return write(filepath.Join(target, name), text)
}

func write(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the suite: %w", err)
	}
	return nil
}
