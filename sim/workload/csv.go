// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/topodra/topodra/sim/model"
)

// maxSeconds bounds times, about 30 years: they are kept in milliseconds.
const maxSeconds = 1e9

// columns are the columns that are read; others are ignored. The second name is that
// of the openb lists.
//
//	name               of the job; needed
//	gpus, num_gpu      GPUs of each pod; needed, 0 for pods without
//	gpu_milli          share of each GPU's memory and compute in per mille, 1 to 1000;
//	                   1000 when missing
//	gpu_cores_percent  share of the compute, where it differs
//	pods               1 when missing
//	arrival_s, creation_time
//	                   seconds; 0 when missing
//	duration_s         seconds; otherwise deletion_time less scheduled_time (or, where that
//	                   is empty, creation_time); 0 when neither is there
//	cpu_milli, memory_mib
//	                   what each pod takes of the host; 0 when missing
//	gpu_spec           GPU models that will do, joined by "|"; empty for all
//	communicates       true or false; when missing, pods with several GPUs do
//	slow_permille      see model.Job; 0 when missing
var columns = map[string]string{
	"name": "name", "gpus": "gpus", "num_gpu": "gpus", "gpu_milli": "gpu_milli", "gpu_cores_percent": "gpu_cores_percent",
	"pods": "pods", "arrival_s": "arrival", "creation_time": "arrival", "duration_s": "duration",
	"deletion_time": "deletion", "scheduled_time": "scheduled", "cpu_milli": "cpu_milli", "memory_mib": "memory_mib",
	"gpu_spec": "gpu_spec", "communicates": "communicates", "slow_permille": "slow_permille",
}

// ReadCSV reads jobs from a CSV file with a header. The columns are name, gpus,
// gpu_milli, gpu_cores_percent, pods, arrival_s, duration_s, cpu_milli, memory_mib,
// gpu_spec, communicates and slow_permille, of which name and gpus are needed; openb
// lists have other names for some of them. Jobs come back in order of arrival, ties
// in the order of the file.
func ReadCSV(r io.Reader, name string) ([]model.Job, error) {
	reader := csv.NewReader(r)
	header, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("reading jobs %q: reading the header: %w", name, err)
	}
	at := map[string]int{}
	for i, title := range header {
		if column, ok := columns[strings.TrimSpace(title)]; ok {
			if _, twice := at[column]; twice {
				return nil, fmt.Errorf("reading jobs %q: two columns say the same as %q", name, title)
			}
			at[column] = i
		}
	}
	for _, needed := range []string{"name", "gpus"} {
		if _, ok := at[needed]; !ok {
			return nil, fmt.Errorf("reading jobs %q: the header has no column %q", name, needed)
		}
	}
	var jobs []model.Job
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading jobs %q: %w", name, err)
		}
		row := &row{at: at, record: record}
		job := row.job()
		err = cmp.Or(row.err, job.Validate())
		if err != nil {
			line, _ := reader.FieldPos(0)
			return nil, fmt.Errorf("reading jobs %q: line %d: %w", name, line, err)
		}
		jobs = append(jobs, job)
	}
	slices.SortStableFunc(jobs, func(a, b model.Job) int { return cmp.Compare(a.Arrival, b.Arrival) })
	return jobs, nil
}

// row reads the fields of one line and keeps the first error.
type row struct {
	at     map[string]int
	record []string
	err    error
}

func (r *row) text(column string) string {
	i, ok := r.at[column]
	if !ok || i >= len(r.record) {
		return ""
	}
	return strings.TrimSpace(r.record[i])
}

func (r *row) fail(column string, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("column %q: %w", column, err)
	}
}

// number reads an integer of 0 to 2³¹−1.
func (r *row) number(column string, missing int64) int64 {
	text := r.text(column)
	if text == "" {
		return missing
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (v < 0 || v > math.MaxInt32) {
		err = fmt.Errorf("%d is not in 0..%d", v, math.MaxInt32)
	}
	if err != nil {
		r.fail(column, err)
	}
	return v
}

// time reads seconds; false when there are none.
func (r *row) time(column string) (model.Millis, bool) {
	text := r.text(column)
	if text == "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && !(v >= 0 && v <= maxSeconds) {
		err = fmt.Errorf("%q is not in 0..%.0f seconds", text, maxSeconds)
	}
	if err != nil {
		r.fail(column, err)
		return 0, false
	}
	return model.Millis(math.Round(float64(v * 1000))), true
}

func (r *row) job() model.Job {
	j := model.Job{
		Name: r.text("name"), Pods: int(r.number("pods", 1)), SlowPermille: r.number("slow_permille", 0),
		Demand: model.Demand{
			GPUs: int(r.number("gpus", 0)), CPUMilli: r.number("cpu_milli", 0), HostMiB: r.number("memory_mib", 0),
			Models: r.text("gpu_spec"),
		},
	}
	if j.Demand.GPUs > 0 {
		j.Demand.MemoryMilli = r.number("gpu_milli", model.WholeMilli)
		inPercent := (j.Demand.MemoryMilli*model.WholeCores + model.WholeMilli - 1) / model.WholeMilli
		j.Demand.CoresPercent = r.number("gpu_cores_percent", inPercent)
	}
	j.Demand.Communicates = j.Demand.GPUs > 1
	if text := r.text("communicates"); text != "" {
		talks, err := strconv.ParseBool(text)
		if err != nil {
			r.fail("communicates", err)
		}
		j.Demand.Communicates = talks
	}
	j.Arrival, _ = r.time("arrival")
	duration, known := r.time("duration")
	if deleted, ok := r.time("deletion"); ok && !known {
		started, ok := r.time("scheduled")
		if !ok {
			started = j.Arrival
		}
		duration = max(0, deleted-started)
	}
	j.Duration = duration
	return j
}
