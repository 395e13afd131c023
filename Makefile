# demo: the whole chain on the bundled digits; test: the quick suite; check: what CI checks beside the tests;
# docs: the site, into build/docs; a broken link fails; slow: trained results, examples;
# torture: kills, full disks, damaged and hostile files, with a table of counts; bench: speed against named peers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.labelkit-ready

.PHONY: demo test slow torture check docs bench clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(READY)

demo: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/discover_digits.sh demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

slow: $(READY)
	$(BIN)/python -m pytest --slow

torture: $(READY)
	$(BIN)/python -m tests.torture

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) build demo .pytest_cache .mypy_cache .ruff_cache
