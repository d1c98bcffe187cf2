// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names of the binaries in the binary directory.
const (
	// Etcd is the store behind the API server.
	Etcd = "etcd"
	// KubeAPIServer is the API server.
	KubeAPIServer = "kube-apiserver"
	// KubeControllerManager runs the controllers, among them the one that makes claims from templates.
	KubeControllerManager = "kube-controller-manager"
	// StockScheduler is the scheduler as Kubernetes ships it.
	StockScheduler = "kube-scheduler"
	// TopoDRAScheduler is built from cmd/scheduler.
	TopoDRAScheduler = "topodra-scheduler"
	// TopoDRADriver is built from cmd/driver.
	TopoDRADriver = "topodra-driver"
)

const (
	// binDirEnv overrides the directory in which binaries are looked up.
	binDirEnv = "TOPODRA_BIN"
	// modulePath identifies the go.mod that marks the root of the repository.
	modulePath = "github.com/topodra/topodra"
)

// RepoRoot returns the absolute path of the repository's root: the nearest directory at or above the working directory,
// else above the running executable, whose go.mod belongs to this module.
func RepoRoot() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			if isModuleRoot(dir) {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("finding the repository: no go.mod of %q at or above %q", modulePath, starts)
}

// isModuleRoot reports whether dir holds the go.mod of this module.
func isModuleRoot(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, ok := strings.CutPrefix(strings.TrimSpace(s.Text()), "module "); ok {
			return strings.TrimSpace(name) == modulePath
		}
	}
	return false
}

// BinDir returns the directory of the binaries: TOPODRA_BIN if set, else bin/ in the repository's root.
func BinDir() (string, error) {
	if dir := os.Getenv(binDirEnv); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("resolving %s=%q: %w", binDirEnv, dir, err)
		}
		return abs, nil
	}
	root, err := RepoRoot()
	if err != nil {
		return "", fmt.Errorf("%w; set %s to the directory that holds the binaries", err, binDirEnv)
	}
	return filepath.Join(root, "bin"), nil
}

// ErrNoBinary is wrapped by the error about a binary that is missing or cannot be executed.
var ErrNoBinary = errors.New("binary not built")

// findBinary returns the path of the named binary in dir. A name with a slash is taken as a path of its own.
func findBinary(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if strings.ContainsRune(name, filepath.Separator) {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", fmt.Errorf("resolving binary %q: %w", name, err)
		}
		path = abs
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("looking for %q: %w: run `make binaries` in the repository, or set %s: %w", path, ErrNoBinary, binDirEnv, err)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("looking for %q: %w: it is not an executable file; run `make binaries` in the repository", path, ErrNoBinary)
	}
	return path, nil
}
