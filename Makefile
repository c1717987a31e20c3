# Everything runs from .venv, which the first target that needs it makes.
PYTHON ?= python3.12
UV_VERSION := 0.13.9
BIN := .venv/bin
READY := .venv/.ready

# Bytecode makes every later start several seconds faster; some machines switch it off.
unexport PYTHONDONTWRITEBYTECODE
export UV_PYTHON_DOWNLOADS := never
export DO_NOT_TRACK := 1

# What `make demo` reads: a file, folder, glob, prefix or s3:// address of your own, or nothing.
DATA ?=
FORMAT ?=
# What `make bench` runs, and whether all of it must stand.
ONLY ?=
STRICT ?=
# Documents of `make equivalence`; drawn when empty.
SEED ?=

# Test files that run at once; PARALLEL=0 runs them one after the other in one process.
PARALLEL ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(PARALLEL) --dist loadfile --no-loadscope-reorder

.PHONY: demo demo-distill demo-multimodal test test-fast test-gpu check fix bench equivalence up down status env clean requirements setup

demo: $(READY)
	@$(BIN)/python -m infra.main_job $(if $(DATA),--data "$(DATA)") $(if $(FORMAT),--format "$(FORMAT)")

# A longer run of the demo's model teaches a smaller one, which a twin learns without: a table.
demo-distill: $(READY)
	@$(BIN)/python -m infra.distill_demo

# Shapes with captions, questions and edits are packed into rows, and a small model learns them.
demo-multimodal: $(READY)
	@$(BIN)/python -m infra.multimodal_demo

test: $(READY)
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) tests/unit

test-gpu: $(READY)
	$(BIN)/python -m pytest tests/gpu

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m infra.changelog_gate
	$(PYTEST)

fix: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# ONLY=P6 or ONLY=bench_store runs a part; STRICT=1 fails on a goal that is unmet or not measured.
bench: $(READY)
	@$(BIN)/python -m benchmarks.peer_environment
	@$(BIN)/python -m benchmarks $(ONLY) $(if $(STRICT),--strict)

# Every parallel layout against one process; SEED=n repeats a run. Writes docs/parallel-equivalence.md.
equivalence: $(READY)
	@$(BIN)/python -m benchmarks.equivalence $(if $(SEED),--seed $(SEED))

up: $(READY)
	@$(BIN)/python -m infra.demo .local/demo
	@$(BIN)/python -m infra.local up

down status env: $(READY)
	@$(BIN)/python -m infra.local $@

clean:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m infra.local down || true; fi
	rm -rf .venv .local build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

setup: $(READY)

$(READY): requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.12 with venv, or run make PYTHON=/path/to/python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --python $(BIN)/python --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --editable .
	@touch $(READY)

# The peers share our packages, so their own list leaves those out.
SHARED = $(shell sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements/dev.txt)

# Pins of every dependency with their hashes, without the address of any index.
requirements: $(READY)
	$(BIN)/uv pip compile pyproject.toml --extra local --extra dev --extra fast --python-version 3.12 \
		--generate-hashes --no-emit-index-url --no-header --quiet -o requirements/dev.txt
	$(BIN)/uv pip compile requirements/bench.in -c requirements/dev.txt --python-version 3.12 $(SHARED) \
		--generate-hashes --no-emit-index-url --no-header --quiet -o requirements/bench.txt
	$(BIN)/uv pip compile requirements/bench-alone.in --no-deps --python-version 3.12 \
		--generate-hashes --no-emit-index-url --no-header --quiet -o requirements/bench-alone.txt
