// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the expected output into the scripts instead of comparing with it")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kubectl-topodra":          func() { os.Exit(run()) },
		"kubectl_complete-topodra": func() { os.Exit(run()) },
	})
}

// TestScripts runs the program itself, as people call it.
func TestScripts(t *testing.T) {
	t.Parallel()
	machines, err := filepath.Abs("../../topology/topotest/machines")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("MACHINES", machines)
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "no-such-kubeconfig"))
			return nil
		},
	})
}
