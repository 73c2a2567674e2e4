# Targets set up .venv by themselves; `make demo` and `make test` are enough to begin.
.DEFAULT_GOAL := help
.PHONY: help demo hold test compiled unit coverage check bench bench-report soak fuzz testbed prometheus3 helm4 certmanager compat cluster cluster-shell cluster-down gpusharectl preload image release picture proto lock format clean

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MINUTES ?= 10
EXAMPLES ?= 3000
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpushare/__init__.py)
IMAGE ?= gpushare:$(VERSION)
# The images of a release, and the folder from which krew will fetch its plugin.
IMAGES ?= amd64 arm64
URL ?= https://example.invalid/gpushare/v$(VERSION)
# The Pythons of dist/gpusharectl: those that setup.cfg names.
PYTHONS := 3.11 3.12 3.13
WHEELS := build/wheels
# What is imported is compiled then; most of what is installed never is.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# One version of each for every Python and platform, with the digests of all its files.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
    --fork-strategy fewest --generate-hashes --no-emit-index-url --no-annotate \
    --no-strip-extras \
    --custom-compile-command "make lock"
# Compiled modules are kept, since the tests import ours in hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
PROJECT := setup.cfg pyproject.toml requirements/build.txt requirements/runtime.txt

help:  ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime  ## Show the main job: no GPU, no root, no cluster; under a minute
	@$(BIN)/gpusharectl demo

hold: $(VENV)/.runtime  ## Start the demo's cluster and leave it running for kubectl
	@$(BIN)/gpusharectl demo --hold

test: $(STAMP)  ## All tests, on a real control plane and a real cluster if this machine can run them
	@$(MAKE) --no-print-directory --jobs=2 check testbed compiled
	@folder=$$(mktemp -d /tmp/t.XXXX) && $(BIN)/python -m pytest -n 5 --dist loadscope \
		--no-loadscope-reorder --basetemp=$$folder/p && rm -rf $$folder

# Once, because pytest's processes would begin at once, each with all modules. What
# cannot be imported is told by the tests themselves.
compiled: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qqq >/dev/null 2>&1 || true

unit: $(STAMP)  ## The tests that need nothing but Python and a C compiler
	@folder=$$(mktemp -d /tmp/t.XXXX) && $(BIN)/python -m pytest -m unit --hypothesis-profile=unit \
		--ignore=tests/cluster --ignore=tests/controlplane --ignore=tests/gpu \
		-n $$(($$(nproc) + 1)) --dist loadscope --basetemp=$$folder/p && rm -rf $$folder

coverage: $(STAMP)  ## Show which branches the tests without a cluster run
	@folder=$$(mktemp -d /tmp/t.XXXX) && $(BIN)/python -m pytest --ignore=tests/cluster \
		--ignore=tests/gpu -n auto --dist loadscope --basetemp=$$folder/p \
		--cov --cov-report=term && rm -rf $$folder

check: $(STAMP)  ## Format, lint, types, import rules, and whether the chart follows manifests/
	@$(BIN)/ruff format --check --quiet . || { echo "run make format to correct this"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m charts --check

bench: $(STAMP)  ## Measure speed, as ratios within one run; write bench/results and docs
	@$(BIN)/python -m bench
	@$(BIN)/python -m bench.report

bench-report: $(STAMP)  ## Draw docs/performance.md from bench/results
	@$(BIN)/python -m bench.report

soak: $(STAMP)  ## Create and delete pods while components get kill -9, for MINUTES=10, then as long a driver that hangs; SEED= repeats a failed run
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) \
	    $(if $(SEED),--seed $(SEED)) $(if $(POLICY),--policy $(POLICY))

fuzz: $(STAMP)  ## Malformed requests to the real servers, EXAMPLES=3000 for each address
	@FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --no-cov tests/fuzz

testbed: $(STAMP)  ## Build the real binaries and images into the cache (minutes, once)
	@$(BIN)/python -m tests.setup

prometheus3: $(STAMP)  ## Rules, alerts and dashboards on a real Prometheus 3 (built once, minutes)
	@PROMETHEUS=3 $(BIN)/python -m pytest --no-cov tests/monitoring

helm4: $(STAMP)  ## The chart's tests with Helm 4 (built once, minutes)
	@HELM=4 $(BIN)/python -m pytest --no-cov tests/charts tests/controlplane/test_chart.py

certmanager: $(STAMP)  ## The webhook's certificate by cert-manager's controllers, renewal included (built once, minutes)
	@$(BIN)/python -m pytest --no-cov -m certmanager tests/controlplane/test_cert_manager.py

compat: $(STAMP)  ## Chosen tests on other versions of Kubernetes: VERSIONS="1.32 1.37" AREAS="webhook", all if not given (root; 15 minutes a version)
	@$(BIN)/python -m tests.compat $(VERSIONS) $(if $(AREAS),--areas "$(AREAS)")

cluster: $(STAMP)  ## Start a real cluster of two nodes with stub cards (root); BARE=1: without gpushare, to try install
	@$(BIN)/python -m tests.testbed.kubeadm up --nodes 2 $(if $(BARE),--bare)

cluster-shell: $(STAMP)  ## Open a shell on its control-plane node, with gpusharectl and kubectl
	@$(BIN)/python -m tests.testbed.kubeadm shell

cluster-down: $(STAMP)  ## Remove that cluster and every trace of it
	@$(BIN)/python -m tests.testbed.kubeadm down

gpusharectl: $(VENV)/.runtime  ## Build dist/gpusharectl: one file, for Linux on x86-64 with Python 3.11 to 3.13
	@$(PIP_INSTALL) --require-hashes -r requirements/executable.txt
	@rm -rf $(WHEELS) build/lib build/bdist* build/3*.json && mkdir -p $(WHEELS) dist
	@for python in $(PYTHONS); do \
	    $(BIN)/python requirements/targets.py $$python > build/$$python.json && \
	    $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps \
	        --require-hashes -r requirements/runtime.txt --dest $(WHEELS) \
	        --only-binary=:all: --python-version $$python \
	        --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 || exit 1; \
	done
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	    --no-build-isolation --wheel-dir $(WHEELS) .
	@$(BIN)/python -m pex gpushare-vcuda --no-pypi --pre-resolved-dists $(WHEELS) \
	    $(PYTHONS:%=--complete-platform build/%.json) \
	    --script gpusharectl --sh-boot --venv --output-file dist/gpusharectl
	@echo "Built dist/gpusharectl"

preload:  ## Build build/libvcuda.so.1, the library of tier preload (Linux on x86-64)
	@sh isolation/preload/build.sh build/libvcuda.so.1
	@echo "Built build/libvcuda.so.1"

image:  ## Build the container image; IMAGE=, BASE= and BUILD_FLAGS= may be given
	@if [ "$$(uname -m)" = x86_64 ]; then $(MAKE) --no-print-directory preload; \
	else echo "Without the preload library, which is written for x86-64 only"; fi
	@if command -v buildah >/dev/null 2>&1; then \
	    set -- buildah bud --layers --timestamp 0; \
	elif docker version >/dev/null 2>&1; then \
	    export SOURCE_DATE_EPOCH=0; set -- docker build; \
	elif command -v docker >/dev/null 2>&1; then \
	    echo "missing: a Docker daemon that answers;" \
	        "cure: start it, or apt-get install buildah" >&2; exit 1; \
	else \
	    echo "missing: buildah or docker; cure: apt-get install buildah" >&2; exit 1; \
	fi; \
	"$$@" $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg VERSION=$(VERSION) \
	    --tag $(IMAGE) $(BUILD_FLAGS) .
	@echo "Built $(IMAGE)"

release: $(VENV)/.runtime  ## Build all files of a release into dist/release, the same each time; IMAGES=, URL=, BASE=
	@$(BIN)/python -m release --venv $(VENV) --url "$(URL)" --images "$(IMAGES)"

picture: $(STAMP)  ## Take the picture of the page in docs again, with a real browser
	@$(BIN)/python -m tests.extender.page_picture docs/ui.png
	@echo "Wrote docs/ui.png"

proto: $(STAMP)  ## Generate the messages of kubelet's gRPC interfaces again
	@$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. gpushare/kube/proto/*.proto

lock: $(STAMP)  ## Renew requirements/: newest versions that setup.cfg allows, with hashes
	@$(PIP_INSTALL) uv==0.13.9
	@$(BIN)/python -c 'import tomllib; \
	    read = tomllib.load(open("pyproject.toml", "rb")); \
	    print(*read["build-system"]["requires"], sep="\n")' \
	    | $(LOCK) - --output-file requirements/build.txt
	@$(LOCK) setup.cfg --output-file requirements/runtime.txt
	@echo pex | $(LOCK) - --output-file requirements/executable.txt
	@$(LOCK) setup.cfg --extra dev requirements/build.txt \
	    --constraints requirements/runtime.txt --output-file requirements/dev.txt

format: $(STAMP)  ## Format, and correct what ruff can correct
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## Remove the virtual environment and what tools left behind
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage *.egg-info

$(VENV)/bin/python:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh tests/make_venv.sh

# In two steps, because pip cannot check a hash of an editable install.
$(VENV)/.runtime: $(PROJECT) | $(VENV)/bin/python
	@echo "Installing gpushare and what it needs into $(VENV) (once, about half a minute) ..."
	@$(PIP_INSTALL) --require-hashes -r requirements/build.txt -r requirements/runtime.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): $(PROJECT) requirements/dev.txt | $(VENV)/bin/python
	@echo "Installing gpushare with its development tools into $(VENV) ..."
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.runtime
