# make demo   one command from a fresh clone to a working agent (no key, no network but the package index)
# make test   the same set-up plus the test tools; runs every check and test
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test check format bench clean setup setup-dev setup-bench

demo: setup
	@$(BIN)/dsh demo

test: setup-dev
	@sh scripts/system-packages.sh
	@$(MAKE) --no-print-directory check

check:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup-bench
	$(BIN)/python -m benchmarks

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev
setup-bench: $(VENV)/.installed-bench

$(VENV)/pyvenv.cfg:
	@sh scripts/make-venv.sh "$(PYTHON)" "$(VENV)"

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@sh scripts/install.sh "$(VENV)" "." && touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@sh scripts/install.sh "$(VENV)" ".[dev]" && touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@sh scripts/install.sh "$(VENV)" ".[dev,bench]" && touch $@ $(VENV)/.installed $(VENV)/.installed-dev

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
