// SPDX-License-Identifier: Apache-2.0

// Command golangci-lint is golangci-lint with logcheck compiled in, which checks that logging is structured and contextual.
// Both come in the versions of this module's go.mod.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	_ "sigs.k8s.io/logtools/logcheck/gclplugin" // registers logcheck
)

func main() {
	if err := commands.Execute(buildInfo()); err != nil {
		fmt.Fprintf(os.Stderr, "golangci-lint: %v\n", err)
		os.Exit(exitcodes.Failure)
	}
}

// buildInfo takes golangci-lint's version from what the linker recorded.
func buildInfo() commands.BuildInfo {
	info := commands.BuildInfo{Version: "unknown", Commit: "none", Date: "unknown"}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	info.GoVersion = build.GoVersion
	for _, dep := range build.Deps {
		if strings.HasPrefix(dep.Path, "github.com/golangci/golangci-lint/") {
			info.Version = strings.TrimPrefix(dep.Version, "v")
		}
	}
	return info
}
