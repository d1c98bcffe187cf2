// SPDX-License-Identifier: Apache-2.0

package region

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// Reason is why a file was skipped, in one word.
type Reason string

// All reasons.
const (
	// ReasonKind: it is no regular file.
	ReasonKind Reason = "kind"

	// ReasonSize: it is too short or too long, or was cut off meanwhile.
	ReasonSize Reason = "size"

	// ReasonMagic and ReasonVersion: somebody else's file, or another layout.
	ReasonMagic   Reason = "magic"
	ReasonVersion Reason = "version"

	// ReasonCounts: more GPUs or processes than the tables hold.
	ReasonCounts Reason = "counts"

	// ReasonValues: numbers that no GPU can have.
	ReasonValues Reason = "values"

	// ReasonBusy: reading would wait for somebody.
	ReasonBusy Reason = "busy"

	// ReasonTorn: a process kept writing; only its own part was skipped.
	ReasonTorn Reason = "torn"

	// ReasonRead: the operating system refused.
	ReasonRead Reason = "read"
)

// Reasons lists all reasons.
func Reasons() []Reason {
	return []Reason{ReasonKind, ReasonSize, ReasonMagic, ReasonVersion, ReasonCounts, ReasonValues, ReasonBusy, ReasonTorn, ReasonRead}
}

// Error says why a file was skipped.
type Error struct {
	Reason Reason
	Err    error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what is behind it.
func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason of an error of Read.
func ReasonOf(err error) Reason {
	if skipped, ok := errors.AsType[*Error](err); ok {
		return skipped.Reason
	}
	return ReasonRead
}

// oPath opens a name and not what it stands for. The number is Linux's on all
// machines that have GPUs; package syscall leaves it out.
const oPath = 0x200000

// Read reads the region in a file. A file that is not there is an error that is
// fs.ErrNotExist; everything else that is wrong is an *Error.
func Read(path string) (*Region, error) {
	region, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("reading region %q: %w", path, err)
	}
	return region, nil
}

// read looks at the file first, and then opens just that for reading.
func read(path string) (*Region, error) {
	name, err := syscall.Open(path, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return nil, &Error{Reason: ReasonRead, Err: err}
	}
	defer syscall.Close(name)
	var info syscall.Stat_t
	if err := syscall.Fstat(name, &info); err != nil {
		return nil, &Error{Reason: ReasonRead, Err: err}
	}
	if info.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, &Error{Reason: ReasonKind, Err: fmt.Errorf("it is no regular file, its mode is %#o", info.Mode)}
	}
	// The link leads to the very file that was looked at, whatever its name
	// stands for by now. Not to wait also makes a lease on it an error.
	content, err := syscall.Open("/proc/self/fd/"+strconv.Itoa(name), syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, &Error{Reason: ReasonBusy, Err: err}
	}
	if err != nil {
		return nil, &Error{Reason: ReasonRead, Err: err}
	}
	defer syscall.Close(content)
	return Parse(descriptor(content), info.Size)
}

// descriptor reads from an open file.
type descriptor int

// ReadAt implements io.ReaderAt.
func (d descriptor) ReadAt(buffer []byte, at int64) (int, error) {
	done := 0
	for done < len(buffer) {
		n, err := syscall.Pread(int(d), buffer[done:], at+int64(done))
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return done, err
		case n == 0:
			return done, nil
		default:
			done += n
		}
	}
	return done, nil
}
