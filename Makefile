# Every target sets up what it needs; make and Python >= 3.11 are enough.

PYTHON ?= python3
EXTRAS ?= dev
PYTEST_ARGS ?= -n auto --dist worksteal
TRITON ?= 3.6.0

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRITON_FOLDER := $(VENV)/triton-$(TRITON)

# Tests run in many processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow soak priorities kernels triton docs lint clean

help:
	@echo "make demo      run examples/sb3_pendulum.py: SAC with and without synthetic replay"
	@echo "make test      lint, types and fast tests"
	@echo "make test-slow the slow tests: killed runs, whole programs, training"
	@echo "make soak      hundreds of faults in every save and load path; the frameworks' own tests with our buffers"
	@echo "make priorities build TorchRL's extension where the published one does not load (needs a C++ compiler)"
	@echo "make kernels   tests of the GPU kernels without a GPU (Linux)"
	@echo "make docs      build the documentation in site/"
	@echo "make lint      lint and types"
	@echo "make clean     remove $(VENV), build products and caches"
	@echo
	@echo "Each sets up $(VENV) first."
	@echo "PYTHON=python3.12       the Python that makes $(VENV) (at least 3.11)"
	@echo "EXTRAS=dev,fidelity     what to install (now: $(EXTRAS))"
	@echo "PYTEST_ARGS='-k codec'  arguments for pytest (now: $(PYTEST_ARGS))"
	@echo "SB3_DIR, TORCHRL_DIR, CORL_DIR   checkouts with the frameworks' tests, for make soak (SB3: else from PyPI)"

demo: $(STAMP)
	$(BIN)/python examples/sb3_pendulum.py

test: lint
	$(BIN)/python -m pytest -m "not slow and not soak" $(PYTEST_ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

priorities: $(STAMP)
	$(BIN)/python tests/integrations/torchrl_extension.py

kernels: triton
	PYTHONPATH=$(TRITON_FOLDER) TRITON_INTERPRET=1 $(BIN)/python -m pytest $(PYTEST_ARGS) \
		tests/library/test_kernels.py tests/integrations/test_torchrl_kernel.py \
		tests/benchmarks/test_triton_networks.py tests/benchmarks/test_triton_matmul.py
	PYTHONPATH=$(TRITON_FOLDER) $(BIN)/python -m pytest $(PYTEST_ARGS) tests/library/test_kernels_compiled.py \
		tests/benchmarks/test_triton_compiled.py

triton: $(TRITON_FOLDER)

# Apart from the rest: PyTorch for GPUs brings its own Triton, PyTorch for CPUs none.
$(TRITON_FOLDER): $(STAMP)
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --no-deps --target $@ triton==$(TRITON)
	@touch $@

# The variable silences an advertisement of the theme.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

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
	rm -rf $(VENV) build dist site *.egg-info demo_output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
