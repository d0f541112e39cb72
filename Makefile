# HeatLens. `make` alone lists the commands; everything they install goes into .venv.
# Without a GPU, PyTorch's CPU wheel saves most of the download and of the disk:
#   make serve PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= python3
ARGS :=

VENV := .venv
BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt
# One stamp for each set of packages; a larger set brings the smaller ones up to date as well.
RUN := $(VENV)/.installed-run
TEST := $(VENV)/.installed-test
DEV := $(VENV)/.installed-dev

# $(call install,EXTRA,STAMPS): pip prints its errors and the large downloads, so that a long one is not taken for a hang.
define install
@echo "Installing HeatLens$(1) into $(VENV); the first time takes minutes, as PyTorch is large."
@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.$(1)' \
	| { grep --line-buffered -E '^ *Downloading .*\([0-9.]+ [MG]B\)' || true; }
@touch $(2)
endef

.PHONY: help
help: ## This list
	@echo 'make TARGET [PYTHON=python3.12] [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: serve
serve: $(RUN) ## Install what running needs and start the service (ARGS go to `heatlens serve`)
	@exec $(BIN)/heatlens serve $(ARGS)

.PHONY: test
test: $(TEST) ## Install what the tests need and run them (ARGS go to pytest)
	@command -v chromium >/dev/null || echo 'No chromium here, which the tests of the page need: apt-get install chromium' >&2
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

.PHONY: install
install: $(DEV) ## Install everything, development tools included, into .venv
	@echo '$(VENV) is up to date.'

.PHONY: check
check: $(DEV) ## Formatting, lint, types and import contracts
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: bench
bench: $(DEV) ## Measure the service and the methods; needs wrk (benchmarks/architectures.py takes an hour, and is run by hand)
	@command -v wrk >/dev/null || { echo 'No wrk here, which drives the server: apt-get install wrk' >&2; exit 1; }
	@for script in serving jobs large soak forward gradcam methods layout gradient_flow faithfulness; do \
		echo "== $$script"; \
		$(BIN)/python "benchmarks/$$script.py"; \
	done

.PHONY: soak
soak: $(DEV) ## Besiege a server for 30 minutes, with faults, and draw docs/soak.png (ARGS="--minutes 5" is shorter)
	@$(BIN)/python benchmarks/soak.py --minutes 30 $(ARGS)

.PHONY: audit
audit: $(DEV) ## Known vulnerabilities of what is installed, and licences that nobody decided on; asks PyPI
	@$(BIN)/python .ci/audit.py

.PHONY: clean
clean: ## Remove caches and build output
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## As clean, and remove .venv
	rm -rf $(VENV)

$(RUN): $(BIN)/pip $(PINS)
	$(call install,,$(RUN))

$(TEST): $(BIN)/pip $(PINS)
	$(call install,[test],$(RUN) $(TEST))

$(DEV): $(BIN)/pip $(PINS)
	$(call install,[dev],$(RUN) $(TEST) $(DEV))

# pip is the last thing that venv puts in place: an environment without it is an unfinished one and is made anew.
$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no $(PYTHON) here. HeatLens needs Python 3.11, 3.12 or 3.13: make install PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "HeatLens needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make install PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make an environment: Debian and Ubuntu ship that part apart. As root: apt-get install python3-venv" >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv --clear $(VENV)
