// SPDX-License-Identifier: Apache-2.0

// Command topodra-demo runs one stream of GPU jobs on a real control plane, first with the stock scheduler and then with
// TopoDRA's, and compares what the jobs got with the optimum of their moment. It is what `make demo` calls.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/term"
	"k8s.io/klog/v2"

	"github.com/topodra/topodra/test/cluster"
	"github.com/topodra/topodra/test/demo"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit status: 0 when every job got the best of its moment, 1 after any error, 2 for wrong flags, 130 after Ctrl-C.
func run(args []string, out, errOut *os.File) int {
	flags := flag.NewFlagSet("topodra-demo", flag.ContinueOnError)
	flags.SetOutput(errOut)
	file := flags.String("out", "", "also write the result as JSON to this `file`")
	logs := flags.String("logs", "", "keep the log files of all processes in this `directory`")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		say(errOut, "error: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if err := checkDirectory(*file); err != nil {
		say(errOut, "error: %v\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// What client libraries log would tear the progress line apart; what matters comes back as errors.
	klog.SetLogger(klog.Logger{}) // the zero value discards

	report, err := runDemo(ctx, errOut, *logs)
	status := 0
	switch {
	case ctx.Err() != nil:
		say(errOut, "interrupted; everything that was started has been stopped\n")
		return 130
	case err != nil:
		status = 1
	}
	if len(report.Runs) > 0 {
		if printErr := demo.WriteReport(out, report, demo.Style{Enabled: colour(out)}); printErr != nil {
			err, status = errors.Join(err, printErr), 1
		}
		if writeErr := writeFile(*file, report); writeErr != nil {
			err, status = errors.Join(err, writeErr), 1
		}
	}
	if err != nil {
		say(errOut, "error: %v\n", err)
	}
	return status
}

// checkDirectory finds out early that the result cannot be written.
func checkDirectory(file string) error {
	if file == "" {
		return nil
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil || !info.IsDir() {
		return fmt.Errorf("the result cannot be written to %q: %q is not a directory", file, filepath.Dir(file))
	}
	return nil
}

func runDemo(ctx context.Context, errOut *os.File, logs string) (*demo.Report, error) {
	root, err := cluster.RepoRoot()
	if err != nil {
		return &demo.Report{}, fmt.Errorf("finding the recorded machines and manifests: %w", err)
	}
	progress := demo.NewProgress(errOut, isTerminal(errOut), demo.Style{Enabled: colour(errOut)})
	defer progress.Close()
	return demo.Run(ctx, demo.Config{
		MachinesDir:  filepath.Join(root, "topology", "topotest", "machines"),
		ManifestsDir: filepath.Join(root, "manifests"),
		Cluster:      cluster.Options{LogDir: logs},
	}, progress)
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

func colour(f *os.File) bool {
	return demo.UseColour(isTerminal(f), os.Getenv("NO_COLOR"), os.Getenv("TERM"))
}

// say prints for people; nobody is left to tell if that fails.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// writeFile writes the report as JSON, through a temporary file so that no half of it is ever seen.
func writeFile(path string, report *demo.Report) error {
	if path == "" {
		return nil
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the result as JSON: %w", err)
	}
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("writing the result: %w", errors.Join(err, os.Remove(temporary)))
	}
	return nil
}
