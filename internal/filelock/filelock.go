// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// pollInterval is how often a lock that somebody else holds is tried again.
// flock has no time limit of its own, so waiting is polling.
const pollInterval = 5 * time.Millisecond

// Lock takes the lock at path, which it creates when it is missing, and waits
// until ctx ends. The returned function releases the lock; it must be called
// exactly once.
func Lock(ctx context.Context, path string) (unlock func() error, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening lock file %q: %w", path, err)
	}
	if err := acquire(ctx, file); err != nil {
		return nil, errors.Join(fmt.Errorf("taking lock %q: %w", path, err), file.Close())
	}
	// Closing the only descriptor of this open file drops the lock.
	return file.Close, nil
}

// acquire polls until it has the lock.
func acquire(ctx context.Context, file *os.File) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process or call holds it: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
