// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// withIntended returns a document with one more claim than sample.
func withIntended() *Document {
	out := sample()
	out.Claims["intended"] = &Claim{Namespace: "n", Name: "c", State: StateStarted, Delivery: DeliveryNone, Devices: []Device{}}
	return out
}

// requireLoads checks what another process would read.
func requireLoads(t *testing.T, what, dir string, want *Document) {
	t.Helper()
	got, err := NewStore(dir, "node-1").Load()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if diff := cmp.Diff(want, got, ignoreUnknown); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// TestIntent: an intent is seen by other processes until the next Save, also by
// one that puts the checkpoint back to what it was, and leaves the durable file
// alone.
func TestIntent(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]*Document{"no checkpoint": New("node-1", ""), "a checkpoint": sample()} {
		dir := t.TempDir()
		store := NewStore(dir, "node-1")
		if len(before.Claims) > 0 {
			if err := store.Save(before); err != nil {
				t.Fatal(err)
			}
		}
		content, errBefore := os.ReadFile(store.Path())
		if err := store.SaveIntent(withIntended()); err != nil {
			t.Fatal(err)
		}
		requireLoads(t, name+", intended", dir, withIntended())
		if after, err := os.ReadFile(store.Path()); !bytes.Equal(content, after) || errors.Is(errBefore, fs.ErrNotExist) != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the durable file has changed", name)
		}
		if err := store.Save(before); err != nil {
			t.Fatal(err)
		}
		requireLoads(t, name+", taken back", dir, before)
		if err := errors.Join(store.SaveIntent(withIntended()), store.Save(withIntended()), store.Save(before)); err != nil {
			t.Fatal(err)
		}
		requireLoads(t, name+", done and undone", dir, before)
		if _, err := os.Stat(filepath.Join(dir, IntentFileName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the intent is left: %v", name, err)
		}
	}
}

// TestIntentAfterPowerFailure: any part of an intent, and one about a checkpoint
// that is not there, is as good as none.
func TestIntentAfterPowerFailure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := NewStore(dir, "node-1")
	if err := errors.Join(store.Save(sample()), store.SaveIntent(withIntended())); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, IntentFileName)
	intent, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := [][]byte{bytes.Repeat([]byte{0}, len(intent)), bytes.Replace(intent, []byte(`"intended"`), []byte(`"another_"`), 1)}
	for length := range len(bytes.TrimSpace(intent)) {
		damaged = append(damaged, intent[:length])
	}
	for _, content := range damaged {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		requireLoads(t, string(content), dir, sample())
	}
	if err := os.WriteFile(path, intent, 0o600); err != nil {
		t.Fatal(err)
	}
	requireLoads(t, "whole", dir, withIntended())

	// Another checkpoint has come back from the disk.
	other := sample()
	delete(other.Claims, types.UID("1e2d-uid-b"))
	content, err := Encode(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(store.Path(), content, 0o600); err != nil {
		t.Fatal(err)
	}
	requireLoads(t, "about another checkpoint", dir, other)

	// One that is damaged is reported, whatever was intended.
	if err := os.WriteFile(store.Path(), content[:len(content)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	if _, err := store.Load(); !errors.As(err, &corrupt) {
		t.Errorf("a damaged checkpoint: got error %v", err)
	}
	// An intent of another node says nothing here.
	if err := errors.Join(os.Remove(store.Path()), NewStore(dir, "node-2").SaveIntent(New("node-2", "boot"))); err != nil {
		t.Fatal(err)
	}
	requireLoads(t, "of another node", dir, New("node-1", ""))
}
