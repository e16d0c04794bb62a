# Everything a developer types. `make` alone lists it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS ?= all,test,lint,bench
SOURCES := pyproject.toml setup.py $(wildcard src/pulsar_fast/*.pyx src/pulsar_fast/*.pxd src/pulsar_fast/*.h)

.DEFAULT_GOAL := help
.PHONY: help build demo test soak mutations bench lint debug asan wire clean check-tools

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

check-tools:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else 1)' 2>/dev/null \
	  || { echo "Python 3.10 or newer is needed ($(PYTHON)); try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
	  || { echo "Python headers are missing (Python.h); on Debian: apt-get install python3-dev" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "the venv module is missing; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null 2>&1 \
	  || { echo "a C compiler is missing; on Debian: apt-get install gcc" >&2; exit 1; }

$(VENV)/built: $(SOURCES) | check-tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "building and installing into $(VENV) (about a minute the first time)"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

build: $(VENV)/built ## make .venv, compile the core, install with extras

demo: build ## ingest a real file into the embedded broker and read every line back (FILE=path for another)
	$(BIN)/pulsar-fast demo $${FILE:+"$$FILE"}

test: build ## the whole test suite
	$(BIN)/python -m pytest $(TESTS)

soak: build ## lives (MINUTES=10 of them), tokens, more faults over TLS, figures, outages of real brokers (about 35 minutes more)
	$(BIN)/python -m tests.simulation --minutes $(or $(MINUTES),10)
	PULSAR_FAST_TRAFFIC_SECONDS=60 $(BIN)/python -m pytest --timeout=150 -k renewed tests/integration/test_authentication.py
	PULSAR_FAST_AT_LENGTH=1 $(BIN)/python -m pytest tests/faults -k "TLS or cut_all_along"
	$(BIN)/python -m tests.figures
	$(BIN)/python -m tests.outages --full

mutations: build ## bugs sown on purpose, each of which simulated lives must find within a minute
	$(BIN)/python -m tests.mutations

bench: build ## client CPU a message beside the official client and the bare socket
	$(BIN)/python benchmarks/run.py $(BENCH)

lint: build ## ruff, mypy (strict), cython-lint, bandit, and pip-audit of what is installed along
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src
	$(BIN)/bandit -q -c pyproject.toml -r pulsar_fast setup.py
	$(BIN)/python -m tests.audit

define copy-to
	rm -rf $(1) && mkdir -p $(1)
	git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf - | tar -xf - -C $(1)
endef

debug: ## the test suite on a build with assertions and poisoned buffers
	$(call copy-to,build/debug)
	PULSAR_FAST_DEBUG=1 $(MAKE) -C build/debug test

# Not what starts dozens of processes or measures: that takes minutes, and shows nothing new about memory.
SANITIZED := tests/unit tests/simulation tests/faults \
  --ignore=tests/faults/test_process_life.py --ignore=tests/faults/test_figures.py

asan: ## the core's tests on a build with the address and undefined behaviour sanitizers (gcc)
	$(call copy-to,build/asan)
	PULSAR_FAST_SANITIZE=1 $(MAKE) -C build/asan build EXTRAS=all,test
	# A Python that brings the sanitizers along: what tests start as Python has them too, foreign programs do not.
	rm build/asan/$(BIN)/python
	echo 'int Py_BytesMain(int, char **); int main(int count, char **words) { return Py_BytesMain(count, words); }' \
	  | $(CC) -fsanitize=address,undefined -x c - -o build/asan/$(BIN)/python $$(build/asan/$(BIN)/python3 -c \
	    'from sysconfig import get_config_var as var; print("-L{0} -Wl,-rpath,{0} -lpython{1}".format(var("LIBDIR"), var("LDVERSION")))')
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	  PULSAR_FAST_EXAMPLES=$${PULSAR_FAST_EXAMPLES:-50} PULSAR_FAST_STEPS=$${PULSAR_FAST_STEPS:-30000} \
	  $(MAKE) -C build/asan test TESTS="--timeout=300 $(or $(TESTS),$(SANITIZED))"

wire: build ## regenerate the protobuf module from the .proto
	$(BIN)/python -m pulsar_fast.wire.generate

clean: ## remove what was built
	rm -rf .venv build dist *.egg-info pulsar_fast/*.so src/pulsar_fast/_core.c benchmarks/bin
