PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
WORKERS = $$($(PYTHON) -c "import os; print(os.cpu_count() + 1)")
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# On all cores: pip compiles on one, which takes it a third of the time. Some libraries ship files of Python 2.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all docs wheel lock sbom compose-test bench scaling profile sweeps results noise-over-rounds clean

# Processes that tests start read bytecode instead of compiling fedsim, and the second worker the first's.
unexport PYTHONDONTWRITEBYTECODE

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# torch comes first and pinned: an unpinned torch may bring gigabytes of CUDA packages.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0 --editable .
	$(COMPILE)
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	$(COMPILE)
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	$(COMPILE)
	touch $@

demo: $(VENV)/.installed  ## Install, and run the quickstart scenario.
	$(BIN)/fedsim simulate scenarios/quickstart.yaml

check: $(VENV)/.installed-dev  ## Format, lint, types, import contracts.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One worker more than cores: many tests wait for processes of their own.
test: check  ## The gate: check, then every test that is not slow.
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-all: check docs wheel  ## The gate, the slow tests, the site and the wheel.
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

docs: $(VENV)/.installed-docs  ## The site, into build/site; a warning is an error.
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --fresh-env --conf-dir docs . build/site

wheel: $(VENV)/.installed  ## The wheel, into dist/, tried in an empty environment.
	rm -rf build/lib build/empty dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt torch==2.13.0 dist/*.whl
	cd build/empty && bin/fedsim simulate quickstart --set trials=1 --out "$$(mktemp -d)/run"

lock: $(VENV)/.installed  ## What the images install, by hash, into deploy/lock.
	$(BIN)/python deploy/lock.py $(BIN)/uv

sbom: $(VENV)/.installed  ## What each image is built of, as CycloneDX, into build/sbom.
	mkdir -p build/sbom
	for image in silos server shuffler; do \
	  cat deploy/lock/$$image.txt $$([ $$image = shuffler ] || echo deploy/lock/torch.txt) \
	  | $(BIN)/uv tool run --quiet --python $(BIN)/python --from cyclonedx-bom==7.5.0 cyclonedx-py requirements \
	    --pyproject $$image/pyproject.toml --output-reproducible --output-file build/sbom/$$image.json - || exit 1; \
	done

compose-test:  ## Build the images and run docker-compose.yml for real, with podman; as root.
	deploy/compose-test.sh

bench: $(VENV)/.installed-dev  ## fedsim beside a bare loop and its peers, which go into .venv-peers (FLAGS=--write).
	$(BIN)/python benchmarks/bench.py $(FLAGS)

scaling: $(VENV)/.installed-dev  ## Speed and memory against silos, records, features, hosts; into docs/performance.md.
	$(BIN)/python benchmarks/scaling.py

profile: $(VENV)/.installed-dev  ## Where a round's time goes, by part; into docs/performance.md.
	$(BIN)/python benchmarks/profile_round.py

sweeps: $(VENV)/.installed  ## The shipped sweeps, timed; into docs/performance.md.
	$(BIN)/python benchmarks/sweeps.py

results: $(VENV)/.installed-dev  ## The thesis's experiments, into docs/results.md (FLAGS="--only NAME", "--honest").
	$(BIN)/python -m benchmarks.thesis $(FLAGS)

noise-over-rounds: $(VENV)/.installed-dev  ## Correlated, independent and falling noise; into docs/noise-over-rounds.md.
	$(BIN)/python -m benchmarks.correlated_noise

clean:  ## Remove what the other targets made.
	rm -rf $(VENV) .venv-peers runs build dist *.egg-info
