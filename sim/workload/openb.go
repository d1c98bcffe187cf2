// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"

	"github.com/topodra/topodra/sim/model"
)

//go:embed openb/*.csv.gz
var openb embed.FS

// Lists of pods that are part of the package.
const (
	OpenbDefault    = "default"
	OpenbMultiGPU50 = "multigpu50"
)

// Openb returns the jobs of an openb list of pods.
func Openb(list string) ([]model.Job, error) {
	data, err := openbFile("openb_pod_list_" + list)
	if err != nil {
		return nil, err
	}
	return ReadCSV(bytes.NewReader(data), "openb_pod_list_"+list)
}

// OpenbNodes returns the CSV text of the openb list of GPU nodes.
func OpenbNodes() ([]byte, error) { return openbFile("openb_node_list_gpu_node") }

func openbFile(name string) ([]byte, error) {
	f, err := openb.Open("openb/" + name + ".csv.gz")
	if err != nil {
		return nil, fmt.Errorf("reading openb list %q: there is none, known are %s and %s", name, OpenbDefault, OpenbMultiGPU50)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("reading openb list %q: %w", name, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("reading openb list %q: %w", name, err)
	}
	return data, nil
}
