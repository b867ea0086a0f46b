# Python 3.11 and pip are all that is needed; everything else goes into .venv.
PYTHON ?= python3.11
MANIFEST ?= manifests/quickstart.yaml
# With hashes, which pip wants of every file of a command or of none (see requirements/cpu-torch.lock).
HASHED_LOCKS := requirements/operator.lock requirements/dev.lock requirements/cpu.lock
LOCKS := $(HASHED_LOCKS) requirements/cpu-torch.lock
BIN := .venv/bin
TIER ?= nodes
# Folders with tests that start engines or servers, by tier (tests/tiers.py says what each depends on).
ENGINE_TESTS := tests/engine tests/rehearsal tests/bench
DEPLOYMENT_TESTS := tests/deployment tests/local tests/cli
WHEEL_TESTS := tests/project
API_TESTS := tests/e2e tests/helm tests/operator tests/rules
LAB_TESTS := lab/tests
CLUSTER_COMMAND := PYTHONPATH=testcluster $(BIN)/python -m cluster
TEST_CLUSTER := $(BIN)/pytest testcluster/tests -n 0 -o timeout=900 $(if $(filter api,$(TIER)),-m "not e2e")
IMAGES_COMMAND := PYTHONPATH=testcluster $(BIN)/python -m images
LOCKED := .venv/.locked
INSTALLED := .venv/.installed
DOCS_LOCKED := .venv-docs/.locked
# pip.conf or PIP_FIND_LINKS may name a place for PyTorch's CPU build. Else it comes from PyTorch's own
# index of CPU wheels: PyPI has builds for GPUs alone.
CPU_INDEX := --extra-index-url https://download.pytorch.org/whl/cpu
TORCH_INDEX = $(if $(shell $(PYTHON) -m pip config list 2>/dev/null | grep find-links),,$(CPU_INDEX))

# Pages of 2 MiB for what Python and PyTorch allocate: a heap that grows by 64 MiB, from malloc. On a
# virtual machine, a page of 4 KiB can cost a thousand times as much to reach as what is in it, and
# tests take several times as long.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864
export PYTHONMALLOC ?= malloc

.DEFAULT_GOAL := help
.PHONY: help venv up lint types imports test test-unit test-smoke test-all test-simulations test-engines test-deployments test-wheel test-api test-lab test-api-release e2e e2e-core e2e-given e2e-kind test-cluster images manifests \
	docs docs-results docs-reference sbom cluster-build cluster-up cluster-monitor cluster-down bench compiled bench-sim bench-strategies bench-engine bench-operator bench-split \
	peers bench-peers \
	test-gpu bench-kernels gpu-archive gpu-check test-vllm vllm-names clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Install the locked packages, Macroserve and its laboratory into .venv

# --no-deps: the locks are complete, and resolving would add CUDA builds (see requirements/cpu.lock).
$(LOCKED): $(LOCKS)
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --no-deps --require-hashes $(addprefix -r ,$(HASHED_LOCKS))
	$(BIN)/pip install --no-deps $(TORCH_INDEX) -r requirements/cpu-torch.lock
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml lab/pyproject.toml
	$(BIN)/pip install --no-deps --no-build-isolation -e . -e lab
	@touch $@

# Ctrl-C goes to macroserve, which stops in order; that end (130) is no error.
up: $(INSTALLED) ## Serve MANIFEST (manifests/quickstart.yaml) on this machine; Ctrl-C stops it
	@trap : INT; $(BIN)/macroserve up -f $(MANIFEST) || test $$? = 130

lint: $(INSTALLED) ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED) ## Check types
	$(BIN)/pyright --threads 2

imports: $(INSTALLED) ## Check who imports whom
	$(BIN)/lint-imports

# Those with servers wait most of their time, so four workers keep two cores busy. A worker takes ten
# seconds to import vLLM, so the tests that need it have workers of their own, as have the kernels'
# tests: Triton reads its settings on import.
VLLM_UNIT_TESTS := tests/engine tests/rehearsal tests/bench/test_profile.py
PYTEST_UNITS := $(BIN)/pytest tests --dist worksteal $(addprefix --ignore=,tests/kernels $(VLLM_UNIT_TESTS))
test-unit: $(INSTALLED) ## Run the tests that start no engine
	$(PYTEST_UNITS) -m "not integration and not simulation" -n 4
	$(BIN)/pytest $(VLLM_UNIT_TESTS) -m "not integration" -n 2
	$(BIN)/pytest tests/kernels -n 2

test-simulations: $(INSTALLED) ## Run the tests that simulate whole loads, and property tests with many examples
	$(PYTEST_UNITS) -m simulation -n 2
	$(PYTEST_UNITS) -m "hypothesis and not integration" -n 2 --hypothesis-profile=thorough

test-smoke: $(INSTALLED) ## Serve with three real engines, split a cell and kill an instance
	$(BIN)/pytest tests/deployment/test_smoke.py -n 0

test: lint types imports test-unit test-smoke ## Run the checks and tests of every change (ten minutes)

# The threads of two engines on two cores would wait for each other most of the time.
test-engines test-deployments test-wheel test-lab: export OMP_NUM_THREADS := 1
PYTEST_SERVERS := $(BIN)/pytest -m integration -x -n 2 --dist loadfile

test-engines: $(INSTALLED) ## Run the tests that start real engines
	$(PYTEST_SERVERS) $(ENGINE_TESTS)

test-deployments: $(INSTALLED) ## Run the tests that start whole deployments
	$(PYTEST_SERVERS) $(DEPLOYMENT_TESTS)

test-wheel: $(INSTALLED) ## Run the tests of the compiled wheel (needs gcc)
	$(BIN)/pytest -m integration -x -n 0 $(WHEEL_TESTS)

test-api: $(INSTALLED) ## Run the tests against a real Kubernetes API server, which is built once
	$(CLUSTER_COMMAND) build --tier api
	$(PYTEST_SERVERS) $(API_TESTS)

test-lab: $(INSTALLED) ## Run the laboratory's tests
	$(BIN)/pytest $(LAB_TESTS) -m "not integration" -n 4
	$(PYTEST_SERVERS) $(LAB_TESTS)

test-all: test test-simulations test-engines test-deployments test-wheel test-api test-lab ## Run everything but the tests on nodes

test-cluster: $(INSTALLED) ## Run the tests of the test clusters themselves (TIER=nodes, as root, or TIER=api)
	$(CLUSTER_COMMAND) build --tier $(TIER)
	$(TEST_CLUSTER)

cluster-build: $(INSTALLED) ## Build the test clusters' Kubernetes from Debian's packages, once
	$(CLUSTER_COMMAND) build

# What is built before, on nodes, are the images that they get.
cluster-up: $(if $(filter nodes,$(TIER)),images,$(INSTALLED)) ## Bring up a cluster to try things on (TIER=nodes, as root, or TIER=api)
	$(CLUSTER_COMMAND) up --tier $(TIER) $(if $(filter nodes,$(TIER)),$$($(IMAGES_COMMAND) | sed 's/^/--image=/'))

cluster-monitor: $(INSTALLED) ## Run Prometheus and Alertmanager for the cluster of KUBECONFIG, until Ctrl-C
	@PYTHONPATH=testcluster:e2e $(BIN)/python e2e/monitor.py helm/macroserve/rules/*.yaml

cluster-down: $(INSTALLED) ## End it
	$(CLUSTER_COMMAND) down

images: $(INSTALLED) ## Build the operator's and the engine's image, by Docker where it answers
	$(IMAGES_COMMAND)

manifests: $(INSTALLED) ## Write manifests/operator from the chart
	$(BIN)/python helm/manifests.py

$(DOCS_LOCKED): requirements/docs.lock
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/pip install --no-deps --require-hashes -r requirements/docs.lock
	@touch $@

docs: $(DOCS_LOCKED) ## Build the documentation into build/site
	.venv-docs/bin/mkdocs build --strict

docs-results: $(INSTALLED) ## Write the pages of results from docs/templates/results and docs/results/data
	$(BIN)/python docs/scripts/results.py docs/results

docs-reference: $(INSTALLED) ## Write docs/reference from the CRD, the chart, the commands and the metrics
	$(BIN)/python docs/scripts/reference.py docs/reference

# What a lock says: each package with its version, and the hashes of its files. The tool checks them
# against CycloneDX's own schema.
SBOM_FOLDER ?= build/sbom
SBOM = $(BIN)/cyclonedx-py requirements - --pyproject pyproject.toml --output-reproducible
sbom: $(INSTALLED) ## Write the packages of each environment (CycloneDX) into build/sbom
	@mkdir -p $(SBOM_FOLDER)
	cat requirements/operator.lock | $(SBOM) -o $(SBOM_FOLDER)/operator.cdx.json
	cat requirements/cpu.lock requirements/cpu-torch.lock | $(SBOM) -o $(SBOM_FOLDER)/cpu.cdx.json
	cat requirements/gpu.lock | $(SBOM) -o $(SBOM_FOLDER)/gpu.cdx.json

# CLUSTER=given: on the cluster of KUBECONFIG, which finds the images under the names of IMAGES.
E2E_NEEDS := $(if $(filter given,$(CLUSTER)),$(INSTALLED),cluster-build images)
# A case that starts the cluster waits for it and for the images, too.
e2e: $(E2E_NEEDS) ## Run the tests on two real nodes (as root; about three quarters of an hour)
	$(BIN)/pytest e2e -m e2e -n 0 -o timeout=900

e2e-core: $(E2E_NEEDS) ## Run those of them that take less than a minute each
	$(BIN)/pytest e2e -m "e2e and not slow" -n 0 -o timeout=900 $(E2E_OPTIONS)

e2e-given: cluster-build images ## Run some cases on the built cluster as on one that is given (as root)
	$(BIN)/pytest e2e/test_given.py -n 0 -o timeout=900

bench: $(INSTALLED) ## Run the benchmarks; the figures go to build/bench.json
	@mkdir -p build
	$(BIN)/macroserve bench all --json build/bench.json

# What is called for each batch and each request, by mypyc (hatch_build.py).
compiled: $(INSTALLED) ## Build the packages with schedulers and simulator compiled, in build/compiled (needs gcc)
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/pip install --no-deps --no-build-isolation --upgrade \
		--target build/compiled .

bench-sim: JSON := build/bench-sim.json
bench-sim: compiled ## Measure the simulator's speed and memory, compiled (half an hour); figures go to JSON
	@mkdir -p $(dir $(JSON))
	PYTHONPATH=build/compiled $(BIN)/macroserve bench sim --json $(JSON)

bench-engine: JSON := build/bench-engine.json
bench-engine: $(INSTALLED) ## Compare the engine with stock vLLM (ten minutes); figures go to JSON
	@mkdir -p $(dir $(JSON))
	$(BIN)/macroserve bench engine --json $(JSON)

bench-strategies: JSON := build/bench-strategies.json
bench-strategies: $(INSTALLED) ## Measure strategies in a real engine beside the simulator (about forty minutes); figures go to JSON
	@mkdir -p $(dir $(JSON))
	$(BIN)/macroserve bench strategies --json $(JSON)

# What it has differs from .venv by one small lock. vLLM 0.33 has no build for CPUs, and 0.31's kernel for
# recurrent layers on CPUs knows no float32.
VERSION ?= 0.31.0
VLLM_LOCK := requirements/vllm-$(VERSION).lock
VLLM := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/macroserve/vllm-$(VERSION)
VLLM_LOCKED := $(VLLM)/.locked
VLLM_TESTS := tests/engine/hybrid/test_tokens.py $(addprefix tests/engine/test_,$(addsuffix .py,vllm_tokens \
	async_tokens prefix_tokens adapter_tokens speculation_tokens pipeline_tokens model_kinds image_connector text_app \
	token_frames vllm_choices vllm_names))
$(VLLM_LOCK):
	@echo "There is no $@: VERSION is one of $(patsubst requirements/vllm-%.lock,%,$(wildcard requirements/vllm-*.lock))" >&2
	@false
$(VLLM_LOCKED): $(VLLM_LOCK) $(LOCKS)
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/pip install --no-deps --require-hashes $(addprefix -r ,$(HASHED_LOCKS))
	$(VLLM)/bin/pip install --no-deps $(TORCH_INDEX) -r requirements/cpu-torch.lock
	$(VLLM)/bin/pip install --no-deps --require-hashes -r $(VLLM_LOCK)
	@touch $@

test-vllm: $(VLLM_LOCKED) ## Run the engine's tests with another vLLM (VERSION=0.31.0), installed into the user's cache folder
	$(VLLM)/bin/pip install --quiet --no-deps --no-build-isolation -e .
	$(VLLM)/bin/pytest -n 0 -k "not recurrent" $(VLLM_TESTS)

# Downloads a gigabyte once, into the user's cache folder.
vllm-names: $(INSTALLED) ## Write anew what the supported versions of vLLM have, from their sources, and check types against each
	PYTHONPATH=tests $(BIN)/python -m support.vllm_names
	$(BIN)/ruff format --quiet serving/macroserve/api/vllm_names.py
	PYTHONPATH=tests $(BIN)/python -c "from support.vllm_names import check_types; check_types()"

# The engines that these route to are Macroserve's own vLLM, so no engine is installed here.
PEERS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/macroserve/peers
PEERS_LOCKED := $(PEERS)/.locked
$(PEERS_LOCKED): requirements/peers.lock
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/pip install --no-deps --require-hashes -r requirements/peers.lock
	@touch $@

peers: $(PEERS_LOCKED) ## Install vLLM's router and Dynamo into the user's cache folder, to compare with

bench-peers: JSON := build/peers.json
bench-peers: $(INSTALLED) $(PEERS_LOCKED) ## Compare with vLLM's router and Dynamo (more than thirteen hours; goes on where it was stopped); figures go to JSON
	@mkdir -p $(dir $(JSON))
	$(BIN)/macroserve bench peers --json $(JSON) --plot $(JSON:.json=.svg)

# On a machine with a GPU, whose own Python has torch, Triton and pytest: nothing else is needed.
GPU_PYTHON ?= python3
test-gpu: ## Test the kernels on this machine's GPU
	PYTHONPATH=kernels $(GPU_PYTHON) -m pytest tests/kernels

bench-kernels: JSON := build/bench-kernels.json
bench-kernels: ## Measure the kernels on this machine's GPU beside what it can do; figures go to JSON
	@mkdir -p $(dir $(JSON))
	PYTHONPATH=kernels $(GPU_PYTHON) -m macroserve.kernels.bench --json $(JSON)

GPU_ARCHIVE ?= build/gpu-check.tar.xz
gpu-archive: $(INSTALLED) ## Pack all that gpu-check needs into GPU_ARCHIVE (50 MB)
	$(BIN)/python -m macroserve_lab.bench.gpu.archive $(GPU_ARCHIVE)

# Nothing is needed there but Python 3.12 with torch and Triton. The archive knows its commit.
gpu-check: JSON := docs/results/data/gpu-check.json
gpu-check: ## On a machine with a GPU and GPU_ARCHIVE, check kernels and engines (eight minutes); figures go to JSON
	$(GPU_PYTHON) -m tarfile -e $(GPU_ARCHIVE) $(dir $(GPU_ARCHIVE))
	$(GPU_PYTHON) $(dir $(GPU_ARCHIVE))gpu-check/check.py --json $(JSON)

bench-operator: JSON := build/bench-operator.json
bench-operator: $(INSTALLED) ## Measure the operator with 200 idle MacroInstances; figures go to JSON
	@mkdir -p $(dir $(JSON))
	PYTHONPATH=testcluster:e2e $(BIN)/python e2e/bench_operator.py --json $(JSON)

bench-split: JSON := build/bench-split.json
bench-split: $(INSTALLED) ## Measure how a cell divides under load, in the cluster of KUBECONFIG; figures go to JSON
	@mkdir -p $(dir $(JSON))
	PYTHONPATH=testcluster:e2e $(BIN)/python e2e/bench_split.py --json $(JSON)

# Where kind and Docker are. KIND_IMAGE names the image of the nodes, and so the version of Kubernetes.
e2e-kind: $(INSTALLED) ## Run the end-to-end cases on a cluster of kind (KIND_IMAGE=kindest/node:v1.37.0)
	CLUSTER=kind $(BIN)/pytest e2e -m e2e -n 0 -o timeout=900

test-api-release: $(INSTALLED) ## Run the API tests on the released Kubernetes whose programs are in KUBERNETES_BINARIES
	$(PYTEST_SERVERS) tests/operator tests/helm

clean: ## Remove .venv, caches and build results
	rm -rf .venv .venv-docs build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find operator serving kernels lab tests testcluster e2e -name __pycache__ -prune -exec rm -rf {} +
