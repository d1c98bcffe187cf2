// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/topodra/topodra/topology"
)

// MaxBytes is the largest input that is read.
const MaxBytes = 1 << 20

// Recorded is a machine with what the recording says beyond the links.
type Recorded struct {
	Machine *topology.Machine
	// Hardware, Source and Kind are free text from the recording: what machine it
	// is, where the record comes from, and how it was made.
	Hardware, Source, Kind string
	// Product is the GPU model that Hardware mentions; zero if none.
	Product topology.Product
	// NVL72 marks a tray of a rack whose NVLinks leave the machine.
	NVL72    bool
	GPUs     []RecordedGPU
	NICs     []NIC
	Warnings []topology.Warning
}

// RecordedGPU is what a recording says about one GPU apart from its links.
type RecordedGPU struct {
	// Index is the number the recording gives the GPU. Numbers ascend, but text may
	// leave some out: position 1 is GPU 2 where GPU 1 fell off the bus.
	Index int
	// NUMAText is the NUMA affinity as printed, such as "1" or "0,3-9,11-17"; ""
	// when not printed.
	NUMAText string
	// CPUAffinity is the CPU list as printed; "" when not printed.
	CPUAffinity string
	// GPUNUMAID is the NUMA node of the GPU's own memory, topology.NoNUMA when
	// not printed.
	GPUNUMAID int
}

// NIC is a network card of the recording. Entries that were not recorded are "".
type NIC struct {
	Name  string
	ToGPU []string
	ToNIC []string
}

// Load reads a recording from a file; the path "-" reads standard input. The
// machine is named after the file unless the recording has a name.
func Load(path string) (*Recorded, error) {
	if path == "-" {
		return Read(os.Stdin, "stdin")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine: %w", err)
	}
	defer f.Close()
	data, err := readAll(f)
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine: %w", err) // it names the file
	}
	r, err := parse(data, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine %q: %w", path, err)
	}
	return r, nil
}

// Read reads a recording of either form from r.
func Read(r io.Reader, name string) (*Recorded, error) {
	data, err := readAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine %q: %w", name, err)
	}
	return Parse(data, name)
}

func readAll(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, MaxBytes+1)) }

// Parse reads a recording: JSON when it is JSON or starts with a brace, the text of
// `nvidia-smi topo -m` otherwise. The name is used when the recording has none.
func Parse(data []byte, name string) (*Recorded, error) {
	r, err := parse(data, name)
	if err != nil {
		return nil, fmt.Errorf("reading recorded machine %q: %w", name, err)
	}
	return r, nil
}

func parse(data []byte, name string) (*Recorded, error) {
	if err := checkInput(data); err != nil {
		return nil, err
	}
	body := bytes.TrimSpace(bytes.TrimPrefix(data, []byte(byteOrderMark)))
	if body[0] == '{' || json.Valid(body) {
		return parseJSON(data, name)
	}
	return parseSMI(data, name)
}

// byteOrderMark is what some editors put in front of UTF-8.
const byteOrderMark = "\ufeff"

// checkInput refuses what cannot be a recording of either form.
func checkInput(data []byte) error {
	switch {
	case len(data) > MaxBytes:
		return fmt.Errorf("it is longer than %d bytes", MaxBytes)
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		return errors.New("it is UTF-16: convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8")
	case bytes.IndexByte(data, 0) >= 0:
		return errors.New("it has bytes of value 0, so it is UTF-16 or no text: convert it to UTF-8, for example with iconv -f UTF-16LE -t UTF-8")
	case len(bytes.TrimSpace(bytes.TrimPrefix(data, []byte(byteOrderMark)))) == 0:
		return errors.New("it is empty: it must be a recorded machine or the output of nvidia-smi topo -m")
	}
	return nil
}
