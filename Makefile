# One command each. `make setup` is quick when nothing changed; everything else runs it first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV   := .venv
BIN    := $(VENV)/bin
# The system's own Python first, if it has all we need: distributions build it with profile-guided optimisation, and what was built by
# hand often was not, which costs a third of the speed.
COMPLETE := import ensurepip, os, sys, sysconfig, venv; \
	sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
PYTHON ?= $(shell if /usr/bin/python3 -c '$(COMPLETE)' 2>/dev/null; then echo /usr/bin/python3; exit; fi; \
	for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
SEED   ?= 1
ARGS   ?=
WORKERS ?= 3

SOURCES := $(shell find src -type f \( -name '*.py' -o -name '*.html' -o -name '*.js' -o -name '*.css' -o -name '*.json' \) 2>/dev/null)
UNIT_TESTS := $(wildcard tests/test_house.py tests/model tests/amqp tests/broker tests/cli tests/wire)

.PHONY: help setup demo test check lint format docs bench sim serve clean java js lock audit

help:
	@echo "make setup    create $(VENV) and install Tandem, compiled where a C compiler is present"
	@echo "make demo     watch an outage: see README.md"
	@echo "make test     every test, uncompiled and compiled"
	@echo "make lint     format, lint, types"
	@echo "make check    format, lint, types, house rules, unit tests"
	@echo "make format   let ruff format and fix what it can"
	@echo "make docs     write the generated reference pages again"
	@echo "make serve    run a broker on this machine (ARGS='--port 5672')"
	@echo "make bench    benchmarks (NAME=engine for one)"
	@echo "make sim      the simulator (SEED=n)"
	@echo "make lock     write build/requirements.lock: every dependency with its hashes"
	@echo "make audit    the same, compared with published advisories"
	@echo "make clean    remove everything that was built"

setup: $(VENV)/.installed

$(VENV)/.python:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed (on Debian: apt-get install python3 python3-venv)"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; \
	else echo "$(PYTHON) cannot create virtual environments: install python3-venv"; exit 2; fi
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@touch $@

# Dependencies change rarely: they have a stamp of their own, so that a change of source reinstalls only ourselves.
$(VENV)/.dependencies: pyproject.toml | $(VENV)/.python
	@echo "installing dependencies (the first time this takes a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python tools/dependencies.py spark dev > $(VENV)/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	@touch $@

# Not editable, so that $(BIN)/tandem is the compiled one; built with the tools just installed, hence no isolation.
$(VENV)/.installed: $(VENV)/.dependencies setup.py README.md $(SOURCES)
	@rm -f build/compiled.txt
	@find build -path 'build/lib*' -name '*.py' -delete 2>/dev/null || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .
	@echo "tandem $$(cat build/compiled.txt 2>/dev/null || echo 'installed')"
	@touch $@

demo: setup
	@$(BIN)/tandem demo $(ARGS)

serve: setup
	@$(BIN)/tandem serve $(ARGS)

# One or all: make bench NAME=engine ARGS=...
bench: setup
	@for script in $(if $(NAME),benchmarks/$(NAME).py,$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; env -u PYTHONPATH $(BIN)/python $$script $(ARGS); done

sim: setup
	@[ -e src/tandem/testing/simulate.py ] || { echo "this version has no simulator"; exit 2; }
	@$(BIN)/python -m tandem.testing.simulate --seed $(SEED) $(ARGS)

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy benchmarks

check: lint
	@PYTHONPATH=$(CURDIR)/src $(BIN)/python -m pytest -q -m "not slow" $(UNIT_TESTS)

format: setup
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format .

docs: setup
	@$(BIN)/python tools/configuration_page.py

# First the source as it stands, then what is marked `compiled_too` again with the installed package: src/ is not on its path.
test: setup java js
	@echo "== from source"
	@PYTHONPATH=$(CURDIR)/src $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)
	@echo "== compiled"
	@mkdir -p build/compiled-run && cd build/compiled-run && env -u PYTHONPATH TANDEM_TEST_INSTALLED=1 \
		../../$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -c ../../pyproject.toml --rootdir ../.. -o pythonpath=../.. -m compiled_too ../../tests $(ARGS)

java:
	@if command -v java >/dev/null 2>&1 || [ -x "$${JAVA_HOME:-/nonexistent}/bin/java" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing a Java runtime for Spark"; apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless >/dev/null; \
	else echo "MISSING: Java 17 or newer. Spark tests will be skipped (on Debian: apt-get install openjdk-17-jre-headless)."; fi

js: tests/js/node_modules/.installed

tests/js/node_modules/.installed: tests/js/package.json
	@if command -v npm >/dev/null 2>&1; then \
		cd tests/js && npm install --no-audit --no-fund --no-package-lock --silent && touch node_modules/.installed; \
	else echo "MISSING: Node.js 20 with npm. Tests with the JavaScript SDK will be skipped."; fi

# Tools of their own, so that what they need never mixes with what is audited.
$(VENV)/audit/.installed: | $(VENV)/.python
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit pip-tools
	@touch $@

lock: $(VENV)/audit/.installed
	@mkdir -p build && $(PYTHON) tools/dependencies.py spark > build/requirements.in
	@$(VENV)/audit/bin/pip-compile --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate --no-header \
		--output-file build/requirements.lock build/requirements.in
	@echo "build/requirements.lock: $$(grep -c '==' build/requirements.lock) packages with the hashes of their files"

audit: lock
	@$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement build/requirements.lock

clean:
	rm -rf $(VENV) build dist src/*.egg-info tests/js/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
