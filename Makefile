# demo         start on 240 bundled photos with 24 labels: writes a table and a page to demo/
# test         the quick tests; coverage: the same, with the fraction of branches that they run
# test-lowest  the quick tests with the lowest allowed versions of the dependencies, in a separate environment
# slow         the quick tests and the slow ones: trained results and examples
# torture      kills, full disks, damaged and hostile files, with a table of counts
# check        format, lint, types, import contracts, and known vulnerabilities of the locked versions
# docs         the documentation site, in build/docs; a broken link is an error
# bench        speed compared with other libraries; bench-quick: only the rows that take seconds
# lock         requirements.lock, with the tested versions; sbom: the same versions as CycloneDX

# methods of the user's own files must not appear in tests and docs
unexport LABELKIT_METHODS
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.labelkit-ready
LOWEST := .venv-lowest
# Two workers for two cores: each worker takes 20 seconds to import and collect everything.
QUICK := -m pytest -n 2 --dist loadfile
# Write bytecode even if the environment forbids it: compiling takes ten seconds in every process of the tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test coverage test-lowest slow torture check docs lock sbom bench bench-quick clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(READY)

# Direct dependencies have their lowest versions; all others are as new as these allow.
$(LOWEST)/.labelkit-ready: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip compile --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--output-file $(LOWEST)/lowest.txt pyproject.toml
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraints $(LOWEST)/lowest.txt -e ".[dev]"
	touch $@

demo: $(READY)
	$(BIN)/labelkit start examples/photos --labels examples/photos/labels.csv --out demo

test: $(READY)
	$(BIN)/python $(QUICK)

coverage: $(READY)
	$(BIN)/python $(QUICK) --cov=labelkit

# Old versions of libraries warn of changes that have been made since.
test-lowest: $(LOWEST)/.labelkit-ready
	$(LOWEST)/bin/python $(QUICK) -W default::DeprecationWarning -W default::FutureWarning

slow: $(READY)
	$(BIN)/python -m pytest --slow

torture: $(READY)
	$(BIN)/python -m tests.torture

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.audit

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The installed versions, with hashes: pip install --require-hashes -r requirements.lock
lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	mkdir -p build
	$(BIN)/python -m pip list --exclude-editable --format=freeze > build/tested.txt
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --generate-hashes --python $(BIN)/python \
		--constraint build/tested.txt --extra dev --output-file requirements.lock pyproject.toml

# The components of a wheel with these versions, as CycloneDX; it is published with the wheel.
sbom: $(READY)
	mkdir -p build
	$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file build/labelkit.cdx.json

# number of threads on both sides
THREADS ?= 1
bench: $(READY)
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	$(BIN)/python -m benchmarks --threads $(THREADS) --json build/bench-$(THREADS).json

bench-quick: $(READY)
	$(BIN)/python -m benchmarks --threads $(THREADS) --quick

clean:
	rm -rf $(VENV) $(LOWEST) build demo .coverage .pytest_cache .mypy_cache .ruff_cache
