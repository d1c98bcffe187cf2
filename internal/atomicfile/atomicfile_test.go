// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestWriteReplacesContentAndMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for i, content := range []string{"first", "", "third, longer than the first"} {
		if err := Write(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Fatalf("write %d: got %q, %v, want %q", i, got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o640 {
		t.Errorf("got mode %v, want 0640", info.Mode())
	}
	requireNames(t, filepath.Dir(path), "file")
}

func TestFailureKeepsOldContentAndLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("cable pulled")
	err := Copy(path, io.MultiReader(bytes.NewReader([]byte("new, but only ha")), failingReader{broken}), 0o600)
	if !errors.Is(err, broken) {
		t.Fatalf("got error %v, want %v", err, broken)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("got %q, %v, want the old content", got, err)
	}
	requireNames(t, dir, "file")

	// A directory in the way makes the rename fail, the last step that can.
	blocked := filepath.Join(dir, "blocked")
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(blocked, []byte("new"), 0o600); err == nil {
		t.Error("replacing a directory that is not empty succeeded")
	}
	requireNames(t, dir, "blocked", "file")

	if err := Write(filepath.Join(dir, "missing", "file"), nil, 0o600); err == nil {
		t.Error("writing into a missing directory succeeded")
	}
}

// TestReadersNeverSeeAPart has writers with contents of one letter each and
// readers that must see one whole content.
func TestReadersNeverSeeAPart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	const size, rounds = 1 << 14, 40
	if err := Write(path, bytes.Repeat([]byte("a"), size), 0o600); err != nil {
		t.Fatal(err)
	}
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			for range rounds {
				if err := Write(path, bytes.Repeat([]byte{byte('a' + w)}, size), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, err := os.ReadFile(path)
				if err != nil || len(got) != size || bytes.Count(got, got[:1]) != size {
					t.Errorf("read a mixture: %d bytes, %v", len(got), err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := Write(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	requireNames(t, dir)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(path); err == nil {
		t.Error("removing a directory that is not empty succeeded")
	}
}

func TestRemoveTemps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{TempPrefix + "1", TempPrefix + "2", "kept", "x" + TempPrefix} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTemps(dir); err != nil {
		t.Fatal(err)
	}
	requireNames(t, dir, "kept", "x"+TempPrefix)
	if err := RemoveTemps(filepath.Join(dir, "missing")); err != nil {
		t.Error(err)
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// requireNames checks what is in dir, in order.
func requireNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got files %q in %q, want %q", got, dir, want)
	}
}

// TestKeepNewest: the last by name stay, and so does everything that is called otherwise.
func TestKeepNewest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"aside-3", "aside-1", "aside-2", "other-0", "asid"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := KeepNewest(dir, "aside-", 2); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if want := "asid aside-2 aside-3 other-0"; strings.Join(got, " ") != want {
		t.Errorf("left are %q, want %q", got, want)
	}
	if err := KeepNewest(filepath.Join(dir, "missing"), "aside-", 2); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
