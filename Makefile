# `make demo` and `make test` work on a fresh machine with Python >= 3.10 and make.
PYTHON  ?= python3
WORKERS ?= 2
SICK    ?=
FAULTS  ?= --seeds 10000:20000 --resume faults.jsonl
BIN     := .venv/bin
STAMP   := .venv/.installed

# Each of pytest's workers computes on one thread; more would only fight over the cores.
test test-all compatibility: export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help venv demo study test test-all check format bench faults compatibility docs build clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "skipscope needs Python >= 3.10: make PYTHON=python3.x"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[dev]'
	@touch $@

venv: $(STAMP)  ## .venv with everything, versions from constraints.txt

demo: $(STAMP)  ## train a residual CNN on digits and print its health (SICK=1: with a planted fault)
	$(BIN)/python docs/examples/digits.py $(if $(SICK),--sick)

study: $(STAMP)  ## the controlled study on digits: with and without shortcuts (3 minutes)
	$(BIN)/skipscope study

test: $(STAMP)  ## the tests that CI runs, doctests among them
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-all: $(STAMP)  ## every test
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(STAMP)  ## format, lint, types, import contracts, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate_rules.py --check
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

format: $(STAMP)  ## format the code and write the generated pages
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python docs/generate_rules.py

bench: $(STAMP)  ## what the monitor costs (not a test)
	$(BIN)/python -m benchmarks

faults: $(STAMP)  ## plant faults in healthy nets: recall, false alarms (hours)
	$(BIN)/python -m benchmarks.faults $(FAULTS)

compatibility: $(STAMP)  ## run every mode and write docs/compatibility.md (minutes)
	-$(BIN)/python -m pytest tests/modes $(wildcard tests/ranks) -q \
		-p tests.modes.outcomes --outcomes .outcomes.json
	$(BIN)/python docs/generate_compatibility.py .outcomes.json

docs: $(STAMP)  ## the documentation, in docs/_build/html
	$(BIN)/python docs/generate_rules.py
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

build: $(STAMP)  ## wheel and sdist, in dist/
	$(BIN)/python -m build

clean:  ## remove what the targets above made, .venv included
	rm -rf .venv build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
