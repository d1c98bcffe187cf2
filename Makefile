# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

GO ?= go
MODULE := github.com/topodra/topodra
# bin/ is also where test/cluster looks for what it runs.
BIN := bin
TOOLS := $(BIN)/tools

# Go tests that wait for processes need more than the default ten minutes on a busy machine.
TEST_TIMEOUT ?= 20m
# The tests on a real node, the soak test among them, take longer still.
E2E_TIMEOUT ?= 60m
# How long `make fuzz` spends on each fuzz target.
FUZZTIME ?= 10s
# What `make bench` runs, how often, and where the result goes besides the terminal.
BENCH ?= .
BENCH_COUNT ?= 6
BENCH_OUT ?= $(BIN)/bench.txt
BENCH_PACKAGES ?= ./topology/...
# Where `make demo` writes its result as JSON, if anywhere.
OUT ?=
# The simulated nodes of `make cluster`: NAME=MACHINE,…
MACHINES := topology/topotest/machines
NODES ?= cube-mesh=$(MACHINES)/dgx1v_8xv100.json,nvswitch=$(MACHINES)/hgxh100_8x_numa2.json,pairs=$(MACHINES)/h100nvl_8x_pairs.json,pcie=$(MACHINES)/rtx4090_8x_all_sys.json
# Further arguments for the program behind `make sim`, such as --only openb/ or --write.
SIM_ARGS ?=
# Further arguments for the program behind `make cluster`.
CLUSTER_ARGS ?=

# Kubernetes binaries report, and give to their nodes, the version that is linked in.
version_package := k8s.io/component-base/version
kubernetes_version = $(shell $(GO) list -m -f '{{.Version}}' k8s.io/kubernetes)
version_part = $(word $(1),$(subst ., ,$(patsubst v%,%,$(kubernetes_version))))
ldflags = -X $(version_package).gitVersion=$(kubernetes_version) -X $(version_package).gitMajor=$(call version_part,1) -X $(version_package).gitMinor=$(call version_part,2)

KUBERNETES := kube-apiserver kube-controller-manager kube-scheduler
KUBERNETES_STAMP := $(BIN)/.kubernetes.stamp
OUR_BINARIES := topodra-scheduler topodra-driver topodra-webhook kubectl-topodra topodra-cluster

##@ General

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN { FS = ":.*## "; print "Usage: make TARGET [VARIABLE=value …]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: clean
clean: ## Remove everything that was built here.
	rm -rf $(BIN)

##@ Build

.PHONY: build
build: $(OUR_BINARIES) ## Build our own programs into bin/.

.PHONY: binaries
binaries: $(KUBERNETES_STAMP) build ## Build all programs that a cluster needs into bin/, Kubernetes' and etcd included.

# One after another: linking several at once takes more memory than a small machine has.
$(KUBERNETES_STAMP): go.mod go.sum
	@mkdir -p $(BIN)
	@echo "building etcd and Kubernetes $(kubernetes_version): minutes with an empty cache, then never again until go.mod changes"
	$(GO) build -trimpath -o $(BIN)/etcd go.etcd.io/etcd/server/v3
	@for name in $(KUBERNETES); do \
		echo "building $$name"; \
		$(GO) build -trimpath -ldflags '$(ldflags)' -o $(BIN)/$$name k8s.io/kubernetes/cmd/$$name; \
	done
	@touch $@

NODE_STAMP := $(BIN)/.node.stamp

.PHONY: binaries-node
binaries-node: binaries $(NODE_STAMP) ## Build also what a real node on this machine needs: kubelet and containerd.

$(NODE_STAMP): go.mod go.sum hack/node/go.mod hack/node/go.sum
	@mkdir -p $(BIN)
	$(GO) build -trimpath -ldflags '$(ldflags)' -o $(BIN)/kubelet k8s.io/kubernetes/cmd/kubelet
	$(GO) -C hack/node build -trimpath -o $(CURDIR)/$(BIN)/ tool
	@touch $@

# build_ours builds one of our programs: its package, its name in bin/.
define build_ours
.PHONY: $(2)
$(2):
	@mkdir -p $$(BIN)
	$$(GO) build -trimpath -ldflags '$$(ldflags)' -o $$(BIN)/$(2) $(1)
endef
$(eval $(call build_ours,./cmd/scheduler,topodra-scheduler))
$(eval $(call build_ours,./cmd/driver,topodra-driver))
$(eval $(call build_ours,./cmd/webhook,topodra-webhook))
$(eval $(call build_ours,./cmd/kubectl-topodra,kubectl-topodra))
$(eval $(call build_ours,./test/cluster/cmd/topodra-cluster,topodra-cluster))
$(eval $(call build_ours,./test/demo/cmd/topodra-demo,topodra-demo))
$(eval $(call build_ours,./cmd/topodra-sim,topodra-sim))

# The tag of images, and what comes before their names: IMAGE_PREFIX=registry.example.com/gpu/
IMAGE_TAG ?= $(shell sed -n 's/^appVersion: //p' manifests/chart/Chart.yaml)
IMAGE_PREFIX ?=
ARCHITECTURES ?= amd64,arm64

.PHONY: images
images: ## Build container images as OCI archives into bin/images; needs a C compiler for each of ARCHITECTURES, and no registry.
	$(GO) run ./hack/images --out $(BIN)/images --version '$(IMAGE_TAG)' --prefix '$(IMAGE_PREFIX)' --architectures '$(ARCHITECTURES)' --ldflags '$(ldflags)'

.PHONY: helm
helm: $(TOOLS)/helm ## Build helm into bin/tools.

.PHONY: manifests
manifests: $(TOOLS)/helm ## Write the manifests that are generated from manifests/chart.
	hack/manifests.sh

##@ Run

.PHONY: demo
demo: binaries topodra-demo ## Place GPU jobs with the stock scheduler and with ours; OUT=file.json also writes the result.
	$(BIN)/topodra-demo $(if $(OUT),--out '$(OUT)')

.PHONY: cluster
cluster: binaries ## Leave a cluster with simulated GPU nodes running until Ctrl-C; NODES=name=machine.json,… chooses them.
	@exec $(BIN)/topodra-cluster --nodes '$(NODES)' $(CLUSTER_ARGS)

# Two runs at a time; what comes out does not depend on it.
.PHONY: sim
sim: topodra-sim ## Simulate placement policies, say which targets are met and whether the tables of docs/results.md come out again.
	$(BIN)/topodra-sim study --document docs/results.md $(SIM_ARGS)

##@ Test

.PHONY: test
test: test-pure test-kube test-process ## Run all tests, after building what they need.

.PHONY: test-pure
test-pure: ## Run the tests of packages that do not link Kubernetes' own code, with the race detector.
	@packages=$$(hack/packages.sh pure); set -x; $(GO) test -race -shuffle=on -timeout $(TEST_TIMEOUT) $$packages

# Packages are compiled in parallel, but test binaries are linked and run one after another: each takes gigabytes to link.
.PHONY: test-kube
test-kube: ## Run the tests of packages that link Kubernetes' own code, with the race detector.
	@libraries=$$(hack/packages.sh kube-libraries); set -x; $(GO) build -race $$libraries
	@packages=$$(hack/packages.sh kube); set -x; $(GO) test -race -shuffle=on -p 1 -timeout $(TEST_TIMEOUT) $$packages

# What is under test runs in processes of its own, which are built without the race detector and which the cache of test
# results knows nothing about.
.PHONY: test-process
test-process: binaries $(TOOLS)/helm ## Run the tests that start a control plane.
	@packages=$$(hack/packages.sh process); set -x; $(GO) test -p 1 -count 1 -timeout $(TEST_TIMEOUT) $$packages

.PHONY: test-upstream
test-upstream: $(KUBERNETES_STAMP) ## Run Kubernetes' own DRA integration tests with our plugin in place of the in-tree one.
	PATH="$(CURDIR)/$(BIN):$$PATH" test/upstream/run.sh

# One node at a time, and never from the cache: what is under test runs in processes of its own.
.PHONY: e2e
e2e: binaries-node ## Run the tests on a real node of this machine, as root; missing Debian packages are installed.
	hack/install-node-deps.sh
	$(GO) test -tags e2e -p 1 -count 1 -timeout $(E2E_TIMEOUT) ./test/node/... ./test/e2e/...

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each.
	hack/fuzz.sh '$(FUZZTIME)'

.PHONY: bench
bench: ## Run the benchmarks; the output is for benchstat, see also bench-compare.
	@mkdir -p $(dir $(BENCH_OUT))
	@$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCH_COUNT) -timeout 60m $(BENCH_PACKAGES) | tee '$(BENCH_OUT)'

# The benchmark's test binary links all of Kubernetes; it is built once and run many times, one run per process.
.PHONY: bench-scheduler
bench-scheduler: $(KUBERNETES_STAMP) ## Compare our scheduler with the in-tree one by scheduler_perf; SCHEDULER_ARGS="--nodes 100,500 --pairs 1" makes it shorter.
	$(GO) test -c -tags perf -o $(BIN)/perf.test ./test/perf
	$(GO) build -trimpath -o $(BIN)/bench-scheduler ./test/perf/cmd/bench-scheduler
	@$(BIN)/bench-scheduler $(SCHEDULER_ARGS)

.PHONY: bench-compare
bench-compare: $(TOOLS)/benchstat ## Compare two results of `make bench`: OLD=file NEW=file.
	@$(TOOLS)/benchstat '$(OLD)' '$(NEW)'

##@ Check

.PHONY: lint
lint: lint-format lint-go lint-shell verify-imports verify-modules verify-manifests ## Check format, code, scripts, import directions, go.mod and what is generated.

.PHONY: lint-format
lint-format:
	@files=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs -r gofmt -l); \
	if [[ -n $$files ]]; then echo "not formatted, run gofmt -w on:"; echo "$$files"; exit 1; fi

.PHONY: lint-go
lint-go: $(TOOLS)/golangci-lint
	$(TOOLS)/golangci-lint run

.PHONY: lint-shell
lint-shell:
	@if command -v shellcheck >/dev/null; then git ls-files '*.sh' .ci/run | xargs shellcheck --severity=warning; \
	else echo "shellcheck is not installed: scripts are checked for syntax only"; \
		git ls-files '*.sh' .ci/run | xargs -n 1 bash -n; fi

.PHONY: verify-imports
verify-imports: ## Check the import directions between packages.
	hack/verify-imports.sh

.PHONY: verify-modules
verify-modules:
	$(GO) mod tidy -diff
	$(GO) -C hack/tools mod tidy -diff
	$(GO) -C hack/node mod tidy -diff

.PHONY: verify-manifests
verify-manifests: $(TOOLS)/helm
	hack/manifests.sh --check

# Tools have a module of their own, so that their dependencies never meet ours.
$(TOOLS)/golangci-lint: hack/tools/go.mod hack/tools/go.sum $(wildcard hack/tools/golangci-lint/*.go)
	@mkdir -p $(TOOLS)
	$(GO) -C hack/tools build -trimpath -o $(CURDIR)/$@ ./golangci-lint

$(TOOLS)/benchstat: hack/tools/go.mod hack/tools/go.sum
	@mkdir -p $(TOOLS)
	$(GO) -C hack/tools build -trimpath -o $(CURDIR)/$@ golang.org/x/perf/cmd/benchstat

$(TOOLS)/helm: hack/tools/go.mod hack/tools/go.sum
	@mkdir -p $(TOOLS)
	$(GO) -C hack/tools build -trimpath -o $(CURDIR)/$(TOOLS)/helm helm.sh/helm/v4/cmd/helm
