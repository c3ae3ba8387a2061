# `make demo` and `make test` need nothing but Python 3.11+, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --ignore tests/integration/frameworks
# The suite starts thousands of processes; without compiled files each would compile outlast again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo docs test test-all failed frameworks trackers check format lock simulate soak clusters bench release pythons clean

setup: $(READY)

# outlast and its four libraries: enough for the demo, in seconds.
$(CORE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "outlast needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements-dev.lock --editable .
	@touch $@

# The tools and libraries of the tests as well.
$(READY): $(CORE) requirements-dev.lock tools/packages.sh
	@tools/packages.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.lock
	@$(BIN)/python -m compileall -q src
	@touch $@

# Install the core on every other Python of this computer and run the demo.
pythons:
	VENV=$(VENV) tools/pythons.sh

demo: $(CORE)
	@$(BIN)/outlast demo

# Build the documentation in site/. A broken link is an error.
docs: $(READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs site
	@echo "site/index.html"

# Every capability, in about four minutes on two cores. Tests that are marked `full` run in `make test-all` only.
test: $(READY) check
	$(PYTEST) -m "not full and not soak and not cluster"

test-all: $(READY) check
	$(PYTEST)

# The tests that failed in the last run, one at a time. Fails if the last run has no failed test.
failed: $(READY)
	$(BIN)/python -m pytest -n 0 -p no:randomly --verbose --last-failed --last-failed-no-failures none

# Test the integrations against the real frameworks (about 2 GB). PyTorch is installed first and alone, so that pip
# takes a CPU build if the index offers one.
frameworks: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-frameworks.lock
	$(BIN)/python -m pytest tests/integration/frameworks --timeout 600

# Test the forwarding of metrics with Weights & Biases, a real MLflow server and TensorBoard's reader. In an environment
# of its own: their requirements contradict those of other tests.
trackers: $(READY)
	$(PYTHON) -m venv $(VENV)/trackers
	$(VENV)/trackers/bin/python -m pip install --quiet --disable-pip-version-check --editable . pytest pytest-timeout \
		pytest-xdist pytest-randomly mlflow==3.17.2 tensorboard==2.21.0 wandb==0.31.0
	$(VENV)/trackers/bin/python -m pytest -n 0 tests/integration/frameworks/test_trackers.py --timeout 600

check: $(READY)
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
		--no-emit-find-links --extra dev pyproject.toml --output-file requirements-dev.lock

# 2,000 simulated worlds: about two minutes on 2 cores.
simulate: $(READY)
	$(BIN)/python -m outlast.testing --seeds $(or $(SEEDS),0:2000)

# An hour of real processes and real faults; SOAK_S=300 for five minutes.
soak: $(READY)
	$(BIN)/python -m pytest -m soak -n 0 -s

# All cluster tests with real Ray: about six minutes on 2 cores.
clusters: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--requirement examples/ray-tune/requirements.txt --requirement examples/ray-train/requirements.txt
	$(BIN)/python -m pytest -m "cluster or not cluster" -n 0 tests/integration/cluster tests/dashboard/test_clusters_page.py

.PHONY: schema
# Write the JSON schema of outlast.toml from the tables of docs/spec.md.
schema: $(READY)
	$(BIN)/python tools/schema.py

.PHONY: pictures
# Render every page of the dashboard to docs/pictures; PICTURES="cost sweep" for some of them.
pictures: $(READY)
	$(BIN)/python tools/pictures.py $(PICTURES)

# Print the tables of benchmarks/README.md and the goals that are missed; BENCH=--quick for a shorter run.
bench: $(READY)
	$(BIN)/python benchmarks/run_all.py $(BENCH)

# Build wheel and sdist and install them as users do, each extra alone. Takes minutes and needs a package index.
release: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python tools/release.py

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
