# Everything a user or a developer runs. `make run` and `make test` need nothing set up by hand.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
THRIFT ?= thrift

.PHONY: venv run check format test test-all stubs bench clean

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

run: venv
	$(BIN)/downpour run examples/digits.toml

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_tidy.py

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: venv
	$(BIN)/pytest -m 'not slow'

test-all: venv
	$(BIN)/pytest

# Needs the Thrift compiler 0.24; the result is committed, so that nobody else needs it.
stubs:
	PYTHON=$(PYTHON) THRIFT=$(THRIFT) sh idl/generate.sh

bench: venv
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
