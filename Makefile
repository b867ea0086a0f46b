# Python 3.11 and pip are all that is needed; everything else goes into .venv.
PYTHON ?= python3.11
MANIFEST ?= manifests/quickstart.yaml
LOCKS := requirements/cpu.lock requirements/dev.lock
BIN := .venv/bin
LOCKED := .venv/.locked
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help venv up lint types imports test test-unit test-integration bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Install the locked packages and Macroserve itself into .venv

# --no-deps: the locks are complete, and resolving would add CUDA builds (see requirements/cpu.lock).
$(LOCKED): $(LOCKS)
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --no-deps $(addprefix -r ,$(LOCKS))
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	$(BIN)/pip install --no-deps --no-build-isolation -e .
	@touch $@

# Ctrl-C goes to macroserve, which stops in order; that end (130) is no error.
up: $(INSTALLED) ## Serve MANIFEST (manifests/quickstart.yaml) on this machine; Ctrl-C stops it
	@trap : INT; $(BIN)/macroserve up -f $(MANIFEST) || test $$? = 130

lint: $(INSTALLED) ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED) ## Check types
	$(BIN)/pyright

imports: $(INSTALLED) ## Check who imports whom
	$(BIN)/lint-imports

test-unit: $(INSTALLED) ## Run the tests that start no engine
	$(BIN)/pytest -m "not integration" -n 2

test-integration: $(INSTALLED) ## Run the tests that start real engines and servers
	$(BIN)/pytest -m integration -x -n 0

test: lint types imports test-unit test-integration ## Run all checks and tests

bench: $(INSTALLED) ## Run the benchmarks; the figures go to build/bench.json
	@mkdir -p build
	$(BIN)/macroserve bench all --json build/bench.json

clean: ## Remove .venv, caches and build results
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find operator serving kernels tests -name __pycache__ -prune -exec rm -rf {} +
