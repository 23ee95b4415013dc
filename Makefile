# `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# torch's threads spin while they wait for each other; on a busy CPU, briefly is ten times faster than the default.
export GOMP_SPINCOUNT ?= 2000

.PHONY: help setup demo test lint docs wheel test-hard test-gpu bench clean

help:
	@echo "make demo      set up, fetch SmolLM2-135M, fine-tune it with EBFT on the CPU, show before and after"
	@echo "make test      set up, then lint, type checks and all tests that need no GPU"
	@echo "make docs      the documentation site, into site/"
	@echo "make wheel     build the wheel, check it, and run the quickstart from it in an empty environment"
	@echo "make test-hard kills, fuzzing and attacks, for about an hour; not part of make test"
	@echo "make test-gpu  the tests of the GPU backends, on a machine with one"
	@echo "make bench     one iteration against the reference implementation, on the CPU"
	@echo "make clean     remove the virtual environment"

setup: $(INSTALLED)

# constraints.txt pins what was tested; pyproject.toml says what may work.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(INSTALLED)
	$(BIN)/ebft fetch smollm2-135m
	$(BIN)/ebft train --config quickstart --resume

# The most lines that src/ebft may have, recipes not counted. Whoever makes it smaller lowers this.
LINES := 15992
lint: $(INSTALLED)
	@n=$$(git ls-files src/ebft | grep -v recipes/ | xargs cat | wc -l); [ $$n -le $(LINES) ] || { echo "src/ebft has $$n lines, more than $(LINES)"; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

# Two at a time, each on one thread: the tensors of the tests are too small to share one between cores. Files in their
# order: xdist's own has those with few and long tests last, beside a process that has nothing left to do.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# A broken link, a page without a place in the menu, or a name that mkdocstrings cannot find is an error.
docs: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

# Built and checked, then installed into an empty environment and run outside the checkout: two steps, no more.
wheel:
	rm -rf dist
	set -e; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT; wheel="$(CURDIR)/dist/*.whl"; \
	$(PYTHON) -m venv $$there/tools; \
	$$there/tools/bin/pip install --quiet --disable-pip-version-check build twine; \
	$$there/tools/bin/python -m build --outdir dist > $$there/log || { cat $$there/log; exit 1; }; \
	$$there/tools/bin/twine check --strict dist/*; \
	$(PYTHON) -m venv $$there/empty; \
	$$there/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $$wheel; \
	cd $$there; \
	empty/bin/ebft fetch smollm2-135m; \
	empty/bin/ebft train --config quickstart --max_steps 2 --validation_sequences 4

# Fewer are quicker: make test-hard TRIALS=10 INPUTS=1000 HONEST=200. As root, the attacks on
# Python's tests run a second time as an ordinary user, with the system's Python, where that is new enough.
TRIALS ?= 100
INPUTS ?= 10000
PARENTS ?= 500
HONEST ?= 2000
test-hard: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hard.kills --each $(TRIALS)
	$(BIN)/python -W ignore -m tests.hard.fuzz --inputs $(INPUTS)
	$(BIN)/python -m tests.hard.parents --trials $(PARENTS)
	$(BIN)/python -m tests.hard.attacks --honest $(HONEST)
	$(BIN)/python -m tests.hard.honest
	$(BIN)/pytest tests/sandbox/test_bubblewrap.py -k another_user -rs

# With the virtual environment if there is one, else with the python and torch that are installed.
GPU_PYTHON := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
# Compiling is most of the work, so several processes share the GPU where pytest-xdist is installed.
SIDE_BY_SIDE = $(shell $(GPU_PYTHON) -c "import xdist" 2> /dev/null && echo "-n 6 --dist worksteal")
test-gpu:
	@$(GPU_PYTHON) -c "import torch; assert torch.cuda.is_available()" 2> /dev/null || \
		{ echo "make test-gpu: no torch with a GPU for $(GPU_PYTHON); nothing was tested"; exit 1; }
	PYTHONPATH=src:. $(GPU_PYTHON) -m pytest -m cuda $(SIDE_BY_SIDE) tests

bench: $(INSTALLED)
	$(BIN)/python benchmarks/step.py --size small-cpu --device cpu

clean:
	rm -rf $(VENV)
