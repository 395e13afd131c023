# demo: from 240 bundled photos and 24 labels to a table and a page; test: the quick tier, every rule once; coverage: the same,
# and the share of branches it runs;
# test-lowest: the same, with the lowest versions of the dependencies that are allowed, in an environment of its own;
# check: what CI checks beside the tests, and known weaknesses of the locked versions; docs: the site, into build/docs; a broken link fails; slow: the quick tier and
# trained results, examples, products; lock: the tested versions; sbom: the same as CycloneDX; torture: kills, full disks, damaged and hostile files, with a table of counts; bench: speed against named peers;
# bench-quick: its rows that take seconds.
# tests and docs are of what labelkit ships
unexport LABELKIT_METHODS
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.labelkit-ready
LOWEST := .venv-lowest
# Two workers for two cores: a third one would import and collect everything once more, which takes 20 seconds.
QUICK := -m pytest -n 2 --dist loadfile
# Python keeps what it compiled, whatever it was told; to compile it again takes ten seconds in every process of the tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test coverage test-lowest slow torture check docs lock sbom bench bench-quick clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(READY)

# The tools of the tests are as new as these versions allow; of the rest, what is not named here is as new as can be.
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

# What is about to change in an old version of a library is no fault of ours.
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

# The versions that the tests have just run with, each with its hashes: pip install --require-hashes -r requirements.lock
lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	mkdir -p build
	$(BIN)/python -m pip list --exclude-editable --format=freeze > build/tested.txt
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --generate-hashes --python $(BIN)/python \
		--constraint build/tested.txt --extra dev --output-file requirements.lock pyproject.toml

# What a wheel of these versions is made of, in the form of CycloneDX; it is published beside the wheel.
sbom: $(READY)
	mkdir -p build
	$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file build/labelkit.cdx.json

# one thread on both sides unless THREADS says otherwise
THREADS ?= 1
bench: $(READY)
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	$(BIN)/python -m benchmarks --threads $(THREADS) --json build/bench-$(THREADS).json

bench-quick: $(READY)
	$(BIN)/python -m benchmarks --threads $(THREADS) --quick

clean:
	rm -rf $(VENV) $(LOWEST) build demo .coverage .pytest_cache .mypy_cache .ruff_cache
