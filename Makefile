# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own virtual environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DOCUMENTING := .venv/documenting

# Three at a time on two cores: some wait for other processes.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-more test-fast test-kernels test-package test-pythons lint docs gallery reproduce bench speed clean

demo: $(INSTALLED)  ## ten agents, three of them Byzantine, learn CartPole
	@folder=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/fedpg train --agents 10 --byzantine 3 --attack sign-flipping --out $$folder && \
	$(BIN)/fedpg play $$folder --out $$folder/play.gif && \
	echo "Look at $$folder/curve.png and $$folder/play.gif"

test: $(INSTALLED)  ## the tests
	$(PYTEST) -m "not more"

test-more: $(INSTALLED)  ## further cases of what these show
	$(PYTEST) -m more

test-fast: $(INSTALLED)  ## for daily work: no network, no simulators, no long compilations
	$(PYTEST) -n 2 -m "not (network or simulators or slow or more)"

KERNELS := OPTIMISED=1 $(PYTEST) -m kernels
test-kernels: $(INSTALLED)  ## what rests on the order of a sum, compiled as users have it: here, on AVX2, on an old processor
	$(KERNELS)
	@set -e; if ! grep -qs avx2 /proc/cpuinfo; then echo "no AVX2 here: its kernels are left out"; \
	else set -x; NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" OPENBLAS_CORETYPE=Haswell \
	XLA_FLAGS="$$XLA_FLAGS --xla_cpu_max_isa=AVX2" $(KERNELS); fi
	NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" OPENBLAS_CORETYPE=Nehalem \
	XLA_FLAGS="$$XLA_FLAGS --xla_cpu_max_isa=SSE4_2" $(KERNELS)

test-package:  ## builds sdist and wheel, and uses the wheel in an empty folder: ten minutes, most of it installing
	PYTHON=$(PYTHON) .ci/package

test-pythons:  ## the quick tests under each Python from 3.11 to 3.14 that is here, and without EnvPool
	PYTHON=$(PYTHON) .ci/pythons

lint: $(INSTALLED)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DOCUMENTING)  ## the documentation as a site in site/, without the internet; then checks it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tests/check_site.py site

gallery: $(INSTALLED)  ## draws the pictures of docs/gallery.md again: a minute
	for script in examples/gallery/*.py; do $(BIN)/python $$script docs/pictures/$$(basename $$script .py).png || exit 1; done
	$(BIN)/python -c 'import sys; from PIL import Image; [Image.open(p).convert("RGB").quantize(64).save(p, optimize=True) for p in sys.argv[1:]]' docs/pictures/*.png

reproduce: $(INSTALLED)  ## every experiment on CartPole, ten seeds each, and the report: about an hour on two cores
	$(BIN)/fedpg reproduce all --task CartPole-v1 --seeds 0:10
	$(BIN)/fedpg report

bench: $(INSTALLED)  ## the speed of this machine
	$(BIN)/fedpg bench

# What is printed takes its place when it is whole.
SPEED := results/speed
measured = @mkdir -p $(SPEED) && echo "$(2) -> $(SPEED)/$(1).txt" && \
	COLUMNS=220 $(BIN)/$(2) > $(SPEED)/$(1).txt.part && mv $(SPEED)/$(1).txt.part $(SPEED)/$(1).txt
speed: $(INSTALLED)  ## measures what docs quote of speed, and stores it: half an hour in which nothing else should run
	$(call measured,CartPole-v1-natural,fedpg bench)
	$(call measured,CartPole-v1-fedpg-br,fedpg bench --quick --algorithm fedpg-br)
	$(call measured,LunarLander-v3-natural,fedpg bench --task LunarLander-v3 --trajectories 500)
	$(call measured,LunarLander-v3-fedpg-br,fedpg bench --task LunarLander-v3 --trajectories 500 --algorithm fedpg-br)
	$(call measured,HalfCheetah-v5-natural,fedpg bench --task HalfCheetah-v5 --trajectories 150)
	$(call measured,HalfCheetah-v5-fedpg-br,fedpg bench --task HalfCheetah-v5 --trajectories 150 --algorithm fedpg-br)
	$(call measured,federation,fedpg bench --federation)
	$(call measured,load,fedpg bench --federation --sites 10 40 200)
	$(call measured,columns,python studies/columns.py)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fedpg needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev,flower-simulation]'
	touch $@

$(DOCUMENTING): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:  ## the virtual environment and the caches, not the runs
	rm -rf .venv build site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
