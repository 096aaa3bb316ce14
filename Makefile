PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all compose-test bench scaling profile sweeps clean

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# torch comes first and pinned: an unpinned torch may bring gigabytes of CUDA packages.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0 --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## Install, and run the quickstart scenario.
	$(BIN)/fedsim simulate scenarios/quickstart.yaml

check: $(VENV)/.installed-dev  ## Format, lint, types, import contracts.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## The gate: check, then every test that is not slow.
	$(BIN)/pytest -n auto --dist worksteal -m "not slow"

test-all: check  ## The gate, and the slow tests.
	$(BIN)/pytest -n auto --dist worksteal

compose-test:  ## Build both images and run docker-compose.yml for real, with podman; as root.
	deploy/compose-test.sh

bench: $(VENV)/.installed-dev  ## fedsim beside a bare loop and its peers, which go into .venv-peers (FLAGS=--write).
	$(BIN)/python benchmarks/bench.py $(FLAGS)

scaling: $(VENV)/.installed-dev  ## Speed and memory against silos, records, features, hosts; into docs/performance.md.
	$(BIN)/python benchmarks/scaling.py

profile: $(VENV)/.installed-dev  ## Where a round's time goes, by part; into docs/performance.md.
	$(BIN)/python benchmarks/profile_round.py

sweeps: $(VENV)/.installed  ## The shipped sweeps, timed; into docs/performance.md.
	$(BIN)/python benchmarks/sweeps.py

clean:  ## Remove what the other targets made.
	rm -rf $(VENV) .venv-peers runs build *.egg-info
