# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
export VENV PYTHON
PY := $(VENV)/bin/python
# The fork first, then the CPU engine's stand-ins and the counter.
CPU := $(CURDIR)/build/fork:$(CURDIR)/python/cpu_engine:$(CURDIR)/python/collective_counter
RUN := PYTHONPATH=$(CPU) SGLANG_USE_CPU_ENGINE=1 $(PY)
# On a GPU host the real kernel library must not be hidden.
RUN_GPU := PYTHONPATH=$(CURDIR)/build/fork $(PY)
BENCH := benchmark/vocab_parallel_draft

.PHONY: help env fork diff check lock wheel wheel-check demo ab test test-gpu bench \
	bench-sampling bench-server bench-workspace calibrate faults families families-record \
	kernel-report lint pr pr-check compat bump clean

help:
	@echo "make demo    the whole comparison, dense against packed, from a fresh machine"
	@echo "make ab      dense against packed on this machine, a report (docs/operators.md)"
	@echo "make test    all tests that need no GPU, from a fresh machine"
	@echo "make env | fork | diff | check | lock | wheel | lint | clean (CONTRIBUTING.md)"
	@echo "make pr TREE= | pr-check | wheel-check | compat | bump VERSION= (CONTRIBUTING.md)"
	@echo "make bench | bench-sampling | bench-server | bench-workspace (benchmark/)"
	@echo "make calibrate  is the draft's probability right, what does it save (docs/calibration.md)"
	@echo "make faults | families | families-record | kernel-report (CONTRIBUTING.md)"
	@echo "make test-gpu  the same cases on CUDA; needs a GPU (README.md)"

env:
	@$(PYTHON) scripts/setup_env.py

fork: env
	@$(PY) scripts/fork build

diff: env
	@$(PY) scripts/fork diff

check: env
	@$(PY) scripts/fork check

lock: env
	@$(PY) scripts/fork lock

wheel: env
	@$(PY) scripts/fork wheel $(WHEEL_ARGS)

# Over stock in a copy of the environment, served, restored, uninstalled: no trace left.
wheel-check: wheel
	@$(PY) -m scripts.wheel_check $(WHEEL_CHECK_ARGS)

demo: fork
	@$(RUN) -m scripts.demo

# make ab PROFILE=cpu-small AB_ARGS="--pairs 3": dense against packed on this machine.
PROFILE ?= cpu-small
ab: fork
	@$(PY) -m scripts.ab $(PROFILE) $(AB_ARGS)

# Predicted against observed acceptance, temperatures, and adaptive steps with the
# confidence against without. CALIBRATE_ARGS="--shards 'stem.*.pt'": of a server of yours.
calibrate: fork
	@$(RUN) -m scripts.calibrate $(CALIBRATE_ARGS)

test: fork check
	@$(RUN) -m pytest $(PYTEST_ARGS)

# The same cases on CUDA; it fails where there is no GPU.
test-gpu: fork
	@$(PY) -c "import torch; assert torch.cuda.is_available(), 'make test-gpu needs a GPU'"
	@$(RUN_GPU) -m pytest test/registered -k Cuda $(PYTEST_ARGS)

bench-server: fork
	@$(PY) benchmark/vocab_parallel_draft/bench_server.py $(BENCH_ARGS)

# What this machine can run; on a GPU host the real kernel library must not be hidden.
HAS_GPU = $(PY) -c "import sys, torch; sys.exit(not torch.cuda.is_available())"
bench: fork
	@if $(HAS_GPU); then $(RUN_GPU) $(BENCH)/run_all.py $(BENCH_ARGS); \
	else $(RUN) $(BENCH)/run_all.py $(BENCH_ARGS); fi

bench-sampling: fork
	@$(RUN) $(BENCH)/bench_sampling_layer.py $(BENCH_ARGS)

bench-workspace: fork
	@$(RUN) $(BENCH)/bench_workspace.py $(BENCH_ARGS)

# Plants known faults in a copy of the fork: each must turn its tests red.
# FAULTS_ARGS="--group unit" without kernels and servers.
faults: fork
	@$(RUN) -m scripts.planted_faults $(FAULTS_ARGS)

# Every draft family through the server, the flag off against on: build/families.json.
# It goes on where it was; FAMILIES_ARGS="--only eagle3 mimo-v2" for some of them.
families: fork
	@$(RUN) -m scripts.families $(FAMILIES_ARGS)

# The whole list, and docs/families.md from it.
families-record: fork
	@$(RUN) -m scripts.families --record $(FAMILIES_ARGS)

# Registers, spills and shared memory of every kernel for sm_90 and sm_100; no GPU.
kernel-report: env
	@$(PY) scripts/kernel_report.py

lint: env
	@PATH="$(VENV)/bin:$$PATH" pre-commit run --all-files

# The commits of the pull request on the SGLang tree TREE, and its description.
pr: env
	@test -n "$(TREE)" || { echo "make pr TREE=folder: a checkout of SGLang" >&2; exit 2; }
	@$(PY) scripts/prepare_pr --tree "$(TREE)" $(PR_ARGS)

# The pull request on a fresh tree of the pin: its tests, and two servers that have
# nothing but that tree and the CPU engine's stand-ins on their path.
# PR_CHECK_ARGS="--engine test/e2e" for the tests of the engine too, --quick for a few.
pr-check: env
	@$(PY) -m scripts.pr_check $(PR_CHECK_ARGS)

# On which releases of SGLang the edits land; build/compat.json.
compat: env
	@$(PY) scripts/fork compat $(COMPAT_ARGS)

# Moves the pin; shows what moved near each anchor and asks. No `env`: the environment
# holds the old release until the pin has moved.
bump:
	@test -n "$(VERSION)" || { echo "make bump VERSION=number" >&2; exit 2; }
	@$(PYTHON) scripts/fork bump --version "$(VERSION)" $(BUMP_ARGS)

clean:
	rm -rf build dist
