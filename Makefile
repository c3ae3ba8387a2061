# `make demo` and `make test` need nothing but Python 3.11+, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Without compiled files every process of ours compiles itself anew, and the suite starts thousands.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo docs test frameworks check format lock simulate soak clusters bench release pythons clean

setup: $(READY)

$(READY): requirements-dev.lock pyproject.toml tools/packages.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "outlast needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@tools/packages.sh
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

# The core on every other Python that is here.
pythons:
	VENV=$(VENV) tools/pythons.sh

demo: $(READY)
	@$(BIN)/outlast demo

# The documents as a site, in site/. Strict: a link that leads nowhere ends it.
docs: $(READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs site
	@echo "site/index.html"

test: $(READY) check
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --ignore tests/integration/frameworks

# The integrations against the real frameworks: about 2 GB. PyTorch comes first, by itself, so that a CPU build is taken
# where the index offers one.
frameworks: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-frameworks.lock
	$(BIN)/python -m pytest tests/integration/frameworks --timeout 600

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

# 2,000 worlds from their seeds: about two minutes on 2 cores.
simulate: $(READY)
	$(BIN)/python -m outlast.testing --seeds $(or $(SEEDS),0:2000)

# An hour of real processes and real faults; SOAK_S=300 for five minutes.
soak: $(READY)
	$(BIN)/python -m pytest -m soak -n 0 -s

# Everything about clusters with real Ray, which is in the development set-up: about six minutes on 2 cores.
clusters: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--requirement examples/ray-tune/requirements.txt --requirement examples/ray-train/requirements.txt
	$(BIN)/python -m pytest -m "cluster or not cluster" -n 0 tests/integration/cluster tests/dashboard/test_clusters_page.py

# The tables of benchmarks/README.md anew, and which goals fall short; BENCH=--quick for a look.
.PHONY: pictures
# Pictures of every page of `outlast ui`, for docs/pictures; PICTURES="cost sweep" for some.
pictures: $(READY)
	$(BIN)/python tools/pictures.py $(PICTURES)

bench: $(READY)
	$(BIN)/python benchmarks/whole.py $(BENCH)

# Wheel and sdist, installed as users do: each extra alone. A few minutes, and a package index.
release: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python tools/release.py

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
