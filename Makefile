# `make demo` and `make test` do all the set-up they need; both want only make and Python >= 3.11.

PYTHON ?= python3
EXTRAS ?= dev
PYTEST_ARGS ?=
TRITON ?= 3.6.0

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRITON_FOLDER := $(VENV)/triton-$(TRITON)

.DEFAULT_GOAL := help
.PHONY: help demo test kernels triton lint clean

help:
	@echo "make demo    set up $(VENV) and run examples/sb3_pendulum.py: SAC with and without synthetic replay"
	@echo "make test    set up $(VENV), then lint, types and tests"
	@echo "make kernels set up $(VENV), then tests of the benchmarks' GPU kernels without a GPU (Linux)"
	@echo "make lint    set up $(VENV), then lint and types only"
	@echo "make clean   remove $(VENV), build products and caches"
	@echo
	@echo "PYTHON=python3.12    the Python that makes $(VENV) (at least 3.11)"
	@echo "EXTRAS=all           what to install, for example the simulators of the benchmarks (now: $(EXTRAS))"
	@echo "PYTEST_ARGS='-n 2'   further arguments for pytest"

demo: $(STAMP)
	$(BIN)/python examples/sb3_pendulum.py

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

kernels: triton
	PYTHONPATH=$(TRITON_FOLDER) TRITON_INTERPRET=1 $(BIN)/python -m pytest $(PYTEST_ARGS) \
		tests/test_triton_networks.py tests/test_triton_products.py
	PYTHONPATH=$(TRITON_FOLDER) $(BIN)/python -m pytest $(PYTEST_ARGS) tests/test_triton_compiled.py

triton: $(TRITON_FOLDER)

# Beside the rest: PyTorch for GPUs brings a Triton of its own, that for CPUs none.
$(TRITON_FOLDER): $(STAMP)
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --no-deps --target $@ triton==$(TRITON)
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The stamp holds the extras it was made with: asking for others sets up again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(EXTRAS))
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one, for example: make test PYTHON=python3.12"; exit 1; } >&2
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@rm -f $(STAMP)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	@echo '$(EXTRAS)' > $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info demo_output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
