// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestElsewhere: no GPU is told apart from a driver that does not work.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	args := []string{"--driver-root=" + root, "--out=" + out, "--sysfs-root=" + t.TempDir()}
	var stdout, stderr bytes.Buffer
	if code := run(args, &stdout, &stderr); code != exitNoGPU || !strings.HasPrefix(stdout.String(), "skipped: ") || stderr.Len() > 0 {
		t.Errorf("no GPU: got %d, %q, %q", code, stdout.String(), stderr.String())
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("no GPU: results were written")
	}
	if code := run([]string{"--no-such-flag"}, &stdout, &stderr); code != exitFailed {
		t.Errorf("a wrong flag: got %d", code)
	}
}
