# The usual commands. `make quick` at every save, `make test lint` before a commit.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
WORKERS ?= auto

# Counts, costs, orders, engines and presets by their laws and published numbers, whole answers, and the documents of
# the command line: what a mistake in a formula, a record or a message breaks first.
QUICK = tests/test_units.py tests/test_estimate.py tests/test_uncertainty.py tests/work tests/costs tests/pricing \
	tests/traffic tests/specs/test_bad_input.py tests/specs/test_writing.py tests/specs/test_presets.py tests/specs/test_frameworks.py \
	tests/foreign/test_importers.py tests/foreign/test_said.py tests/foreign/test_launch_scripts.py \
	tests/engines tests/properties tests/report/test_gantt.py

.PHONY: help install test thorough quick lint format docs fields bench shown goldens validate clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install:  ## everything that is needed to work on flopcast, into .venv
	python3 -m venv .venv && .venv/bin/pip install -q --no-compile -e '.[all]'

test:  ## all tests, on all cores
	$(PYTHON) -m pytest -n $(WORKERS)

thorough:  ## the whole of what has a short form among the tests: ranks that are started and timed, whole records, mypy, laws
	$(PYTHON) -m pytest --thorough -m thorough -n $(WORKERS)
	$(PYTHON) -m pytest --hypothesis-profile=wide -n $(WORKERS) tests/properties tests/oracles tests/engines

quick:  ## what breaks first, in about a minute: no torch, no notebooks
	$(PYTHON) -m pytest -n $(WORKERS) -m "not slow" $(QUICK)
	$(PYTHON) -m ruff check .

lint:  ## style, types, plain words, and which floor imports which
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command as lint; lint()'
	$(PYTHON) -m tests.prose

format:  ## put the code into the house's form
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs:  ## the pages, the verbs and the API as a site, into build/site; a dead link or an omitted page fails
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

fields:  ## docs/fields.md and the scenarios' schema, made of the records of sim/specs
	page=$$($(PYTHON) docs/fields.py) && printf '%s\n' "$$page" > docs/fields.md
	$(PYTHON) -m sim schema -o scenarios/scenario.schema.json

bench:  ## flopcast's own speed, as ratios within one run
	$(PYTHON) -m pytest benchmarks --benchmark-only

shown:  ## README.md and docs/ with the output of today; look at the change before you commit it
	$(PYTHON) -m tests.shown

goldens:  ## what README.md and docs/ show as output is what is printed
	$(PYTHON) -m pytest -n $(WORKERS) tests/test_docs.py tests/test_cli.py -k "shown or show or print or readme"

validate:  ## published runs, beside naive guesses
	$(PYTHON) -m sim validate

clean:  ## what was built
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
