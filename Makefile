# The commands of a developer. Everything runs in .venv, made from constraints.txt.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$python >/dev/null 2>&1 && \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && \
	echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JOBS ?= 2

.PHONY: help test lint format schema bench demo nix clean

help: ## Show what there is to make
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

test: $(INSTALLED) nix ## Run the whole test suite
	$(BIN)/pytest -n $(JOBS)

lint: $(INSTALLED) ## Check style, types, imports, migrations and function files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/squawk --reporter gcc sql/migrations/*.sql
	$(BIN)/pytest -q tests/lint

format: $(INSTALLED) ## Format the Python files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(INSTALLED) ## Write the dump of the tables that a test compares, tests/db/schema.sql
	$(BIN)/python -m tests.support.schema_dump

bench: $(INSTALLED) ## Measure recording a large graph against COPY (GRAPH=file, or the real one)
	$(BIN)/python -m tests.bench.record $(if $(GRAPH),--graph $(GRAPH))

demo: $(INSTALLED) nix ## Evaluate, build and substitute the example flake on this machine
	bash examples/demo.sh

# A virtual environment as constraints.txt pins it.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.14 is needed; set PYTHON=/path/to/python" >&2; exit 1; }
	@sh .ci/need venv "$(PYTHON)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[server,embedded,worker,dev]'
	@touch $@

nix:
	@sh .ci/need nix
	@sh .ci/need git

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
