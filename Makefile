# Everything a user or a developer runs; nothing has to be set up by hand. `make` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
THRIFT ?= thrift

# Tests start hundreds of processes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# The slow tests that only calculate share the cores. The others start clusters and mostly wait: for
# imports, leases and engines, so four processes run them, on two cores as well. Not side by side: a
# calculation of 40 s took more than its 300 s beside clusters, which start as often as they can.
CALCULATIONS := tests/predictor tests/core/scheduler tests/downpour_lab/trials tests/downpour_lab/test_capacity.py tests/core/node

# A crashed process fails its test at once: instead of another one, pytest-xdist may wait for ever.
REPORTED := -rfEs --max-worker-restart 0

# Each process collects what it is given, for seconds, so these get the files that have slow tests.
SLOW = $(sort $(if $(CHANGED),$(shell $(PYTHON) scripts/reached.py --slow),\
	$(shell grep -rlE --include='test_*.py' 'mark\.slow' $(or $(ONLY),tests))))
CALCULATING = $(filter $(addsuffix %,$(CALCULATIONS)),$(SLOW))
WAITING = $(filter-out $(CALCULATING),$(SLOW))

# WING=core takes the tests of one wing, WING=core/modes those of a room in it.
ONLY := $(foreach folder,$(addprefix tests/,$(WING)),$(or $(wildcard $(folder)),$(error there is no $(folder))))

# Quick tests sync thousands of small files: each takes a disk a millisecond, and memory nothing.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "/dev/shm"}')
IN_FOLDER := folder=$$(mktemp -d $(or $(MEMORY),/tmp)/downpour-XXXXXX) && \
	trap 'rm -rf "$$folder"' EXIT && trap 'exit 130' INT TERM &&

# CHANGED=yes takes the tests that the changes since the merge base can reach: scripts/reached.py.
CHOSEN = $(if $(CHANGED),$(or $(shell $(PYTHON) scripts/reached.py),$(error no test reaches what changed)),$(ONLY))

# What reaches the core, whose coverage pyproject.toml asks for.
DECISIONS := tests/core tests/record/test_record.py tests/files/test_spec_file.py \
	$(addprefix tests/badinput/,test_fields.py test_toml.py)

# Where both run, as in .ci/run, `make test REST=yes` leaves out what `make coverage` runs.
LEFT_OUT = $(if $(REST),$(addprefix --ignore=,$(DECISIONS)))

.DEFAULT_GOAL := help
.PHONY: help venv run check prose format test coverage test-slow test-all docs lessons site site-both stubs bench bench-peers bench-lab release clean
# Two installers must never change one environment together.
.NOTPARALLEL:

# A stamp says what is installed. The environment with everything serves all targets.
installed = $(or $(wildcard $(VENV)/.installed),$(VENV)/.installed-$(1))

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

venv: $(VENV)/.installed  ## Create the virtual environment and install everything into it

# torchvision works only beside the build of torch it was resolved with, so each call names both.
$(VENV)/.installed: EXTRAS := dev
$(VENV)/.installed-run: EXTRAS := digits
$(VENV)/.installed $(VENV)/.installed-run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Downpour needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/install.py --editable '.[$(EXTRAS)]'
	touch $@

run: $(call installed,run)  ## Train the example on this machine's own workers
	$(BIN)/downpour run examples/digits.toml

check: venv  ## Check format, lint, types, prose and house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/prose/lint.py
	$(BIN)/pytest tests/test_tidy.py

prose: venv  ## Count what the prose linter flags, by folder and rule (scripts/prose/lint.py FILE: lists it)
	$(BIN)/python scripts/prose/lint.py --counts

format: venv  ## Format the code, and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: venv  ## Run the quick tests (WING=core: those of one wing; CHANGED=yes: those a change can reach)
	@$(IN_FOLDER) $(BIN)/pytest -m 'not slow' $(REPORTED) -n logical --dist worksteal --basetemp="$$folder/t" $(LEFT_OUT) $(CHOSEN)

coverage: venv  ## Check that tests reach the lines of core/, which decides
	@$(IN_FOLDER) $(BIN)/pytest -m 'not slow' $(REPORTED) -n logical --dist worksteal --basetemp="$$folder/t" --cov --cov-report=term $(DECISIONS)

test-slow: venv  ## Run the slow tests (WING=core: of one wing; CHANGED=yes: reached ones and a quarter, or that alone)
	$(if $(CALCULATING),$(BIN)/pytest -m slow $(REPORTED) -n logical --dist worksteal $(CALCULATING))
	$(if $(WAITING),$(BIN)/pytest -m slow $(REPORTED) -n 4 --dist loadscope --timeout 300 $(WAITING))

test-all: test test-slow  ## Run all tests

docs: venv  ## Write the pages of docs/reference/ that follow from the code
	$(BIN)/python scripts/reference/write.py

site: build/site/.installed  ## Build the documentation's site into site/, from docs/ and mkdocs.yml
	build/site/bin/zensical build --strict

site-both: site  ## Build it with ProperDocs as well, into build/properdocs
	build/site/bin/properdocs build --strict --quiet --site-dir build/properdocs

# An environment of its own: two generators and their icons are 250 MB that nobody else needs.
build/site/.installed: docs/requirements.txt
	$(PYTHON) -m venv build/site
	build/site/bin/python scripts/install.py --requirement $<
	touch $@

lessons: venv  ## Run the lessons, and write their pages anew (LESSON=3: one)
	$(BIN)/python scripts/lessons.py $(LESSON)

stubs:  ## Generate the Thrift code anew (Thrift 0.24; the result is committed)
	PYTHON=$(PYTHON) THRIFT=$(THRIFT) sh idl/generate.sh

bench: venv  ## Run the benchmarks
	$(BIN)/python benchmarks/run.py

bench-peers: venv  ## Compare Downpour with other systems, each in an environment of its own (PEER=NAME: one)
	mkdir -p benchmarks/out
	$(BIN)/python benchmarks/compared.py $(PEER) --keep benchmarks/out/compared.json

bench-lab: venv  ## Compare Downpour with other systems over slow links (LAB="--profiles wifi --hosts 2": some)
	$(BIN)/python benchmarks/lab.py $(LAB)

release:  ## Build what is published, try it, and list its licenses, in dist/ (nothing is uploaded)
	$(PYTHON) -m venv build/release
	build/release/bin/pip install --quiet --disable-pip-version-check --requirement release/requirements.txt
	build/release/bin/python release/release.py

clean:  ## Remove the environment and whatever was built
	rm -rf $(VENV) build dist site .cache src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
