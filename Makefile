# A bare machine needs Python 3.11 or newer with venv, and make. Every target makes .venv itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: rehearse test test-vllm check format bench pictures lock clean

# The console on the practice node in a terminal; the headless redeploy without one.
rehearse: $(READY)
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/relaunch --rehearse; else $(BIN)/relaunch --rehearse --script redeploy --yes; fi

# Three files at a time, the slow layers first: they wait for nodes more than for cores. What was left out, and why, stands at the end.
test: $(READY)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# A real vLLM on this machine's CPU, on a real node: 2.5 GB under /opt, made once, then some ten minutes on two cores.
test-vllm: $(READY)
	RELAUNCH_TEST_VLLM=1 $(BIN)/python -m pytest tests/vllm --durations=12

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pictures of the README, from the real program.
pictures: $(READY)
	$(BIN)/python -m tests.pictures

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Relaunch needs Python 3.11 or newer; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

# Needs uv. Names no registry: versions and hashes alone.
lock:
	{ echo "# Every dependency of Relaunch and of its tests, pinned by version and hash. Made by 'make lock'; no registry is named."; \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --extra dev pyproject.toml; } > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
