# A machine with Python 3.11, Rust and a C compiler needs nothing else: make installs the rest into .venv and target.
#
#   make test    cargo test, pytest, and a short slice through the command line
#   make test-all  make test with all cases: kills at every line, tiny benchmarks, whole grids; and make wheel
#   make demo    the demonstration (ARGS="--level 5" for the real thing)
#   make lint    formatters, linters, types, stubs
#   make bench   benchmarks (ARGS=NAME for one)
#   make docs    links and examples of the documents, and a site of them and of the docstrings in docs/_site
#   make simulate  whole pools under 10,000 seeds: crashes, torn writes, lost messages, jumping clocks (ARGS="FIRST COUNT")
#   make fuzz    messages changed at random against the decoders (ARGS="CASES SEED", else 1,000,000 and any)
#   make install  the C library, its header and outcore.pc (PREFIX=/usr/local)
#   make wheel   a wheel in dist, tried in an empty environment (ARGS="--zig --compatibility manylinux_2_28" for
#                older systems, with zig)
#   make coverage  lines that the tests run: totals, and pages in coverage (ARGS="tests/test_fill.py" for Python tests)
#   make clean   removes all that make has made

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# Another environment of the caller's must not leak in.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP CONDA_PREFIX PIP_TARGET PIP_PREFIX PIP_USER
# Without bytecode, each of the hundreds of processes of the tests compiles the package again.
unexport PYTHONDONTWRITEBYTECODE
export PIP_QUIET := 1
export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(VIRTUAL_ENV)/bin:$(PATH):$(HOME)/.cargo/bin

PACKAGES := .venv/packages.stamp
CORE := .venv/core.stamp
C_LIBRARY := .venv/c-library.stamp
MODULES := python/outcore/_core.abi3.so python/outcore/_plugins/liboutcore_hdf5.so
SPHINX := .venv/sphinx.stamp
# For two processors: the third process computes while others wait.
PROCESSES := -n 3 --dist worksteal
RUST := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.PHONY: setup test test-all test-rust test-python slice demo lint lint-python lint-rust bench docs simulate fuzz install wheel coverage clean

setup: $(CORE) $(C_LIBRARY)

$(PACKAGES): pyproject.toml tools/setup
	tools/setup
	touch $@

$(CORE): $(PACKAGES) $(RUST)
	maturin develop --release --locked --quiet
	tools/plugin
	touch $@

$(C_LIBRARY): $(PACKAGES) $(RUST) tools/c-library tools/install-c-library
	tools/c-library
	touch $@

$(SPHINX): $(PACKAGES) docs/requirements.txt
	python -m pip install --disable-pip-version-check -r docs/requirements.txt
	touch $@

# The module or the plugin may have been removed behind the stamp's back.
ifneq ($(words $(wildcard $(MODULES))),$(words $(MODULES)))
.PHONY: $(CORE)
endif
ifneq ($(words $(wildcard target/release/liboutcore.so python/outcore/_c/lib/liboutcore.so.0)),2)
.PHONY: $(C_LIBRARY)
endif

# Rust's tests and Python's run at the same time, and so do their builds: for much of their time, they wait for clocks,
# disks, and each other's processes. The output of Rust's tests comes at their end, in one piece. Without `env` they
# would ignore Ctrl-C, as all processes do that a shell starts in the background.
test: ARGS := $(or $(ARGS),$(PROCESSES))
test-all: ARGS := $(PROCESSES) --exhaustive
test-all: AT_LAST = $(MAKE) --no-print-directory wheel ARGS=
test: AT_LAST := true
test-all: export OUTCORE_EXHAUSTIVE := 1
test test-all:
	tools/setup --tests
	log=$$(mktemp); trap 'rm -f "$$log"' EXIT; failed=0; \
	env --default-signal=INT $(MAKE) --no-print-directory test-rust >"$$log" 2>&1 & \
	$(MAKE) --no-print-directory test-python slice ARGS="$(ARGS)" && $(AT_LAST) || failed=1; \
	wait $$! || failed=1; cat "$$log"; exit $$failed

# Not the release profile: maturin builds that with other settings, and each would undo the other's.
# Properties are tried with the same examples in each run; `make fuzz` draws new ones.
test-rust: export PROPTEST_RNG_SEED := $(or $(PROPTEST_RNG_SEED),1)
test-rust:
	tools/setup --compilers
	cargo test --workspace --locked --quiet --no-fail-fast

test-python: $(CORE) $(C_LIBRARY)
	python -m pytest $(or $(ARGS),$(PROCESSES))

slice: $(CORE)
	tools/slice

# Some 90 of these seeds, and 300 in `make test-all`, are among the tests of the crate.
simulate:
	cargo run --release --locked --quiet -p outcore-sim -- $(or $(ARGS),0 10000)

# Some 256 cases of each of these properties are among the tests of the crates.
fuzz:
	cases=$(or $(word 1,$(ARGS)),1000000) seed=$(or $(word 2,$(ARGS)),$$RANDOM$$RANDOM); \
	echo "make fuzz ARGS=\"$$cases $$seed\""; export PROPTEST_CASES=$$cases PROPTEST_RNG_SEED=$$seed; \
	cargo test --release --locked --quiet -p outcore-net --test decoders; \
	cargo test --release --locked --quiet -p outcore-core --test wire; \
	cargo test --release --locked --quiet -p outcore-server --lib record

demo: $(CORE)
	outcore demo $(ARGS)

lint: lint-python lint-rust

lint-python: $(CORE)
	tools/plain-english
	ruff check
	ruff format --check --quiet
	mypy
	python -m mypy.stubtest outcore._core --allowlist tools/stubtest-allowlist --ignore-unused-allowlist

# Minimal Rust installations lack some of these programs; make uses those that it finds.
lint-rust:
	tools/setup --compilers
	if cargo fmt --version >/dev/null 2>&1; then cargo fmt --check; \
	else echo "lint: rustfmt is not installed (rustup component add rustfmt)"; fi
	if cargo clippy --version >/dev/null 2>&1; then \
	  cargo clippy --workspace --all-targets --locked --quiet -- -D warnings; \
	else echo "lint: clippy is not installed (rustup component add clippy)"; fi
	if cargo deny --version >/dev/null 2>&1; then cargo deny --log-level error check; \
	else echo "lint: cargo-deny is not installed (cargo install cargo-deny): licences not checked"; fi

bench: $(CORE)
	python -m benchmarks $(ARGS)

# A link or a name in a docstring that leads nowhere is an error.
docs: $(CORE) $(SPHINX)
	python -m pytest tests/test_docs.py tests/test_api_pages.py
	sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --jobs auto --conf-dir docs . docs/_site
	@echo "docs: open docs/_site/docs/index.html"

install:
	cargo build --release --locked --quiet -p outcore-capi
	tools/install-c-library "$(or $(PREFIX),/usr/local)" --static

wheel: $(PACKAGES)
	tools/wheel $(ARGS)

coverage: $(CORE)
	tools/coverage $(ARGS)

clean:
	rm -rf .venv target dist coverage docs/_site .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-out bench-out
	rm -rf python/outcore/_core*.so python/outcore/_plugins python/outcore/_c
	find . -name __pycache__ -not -path "./.git/*" -prune -exec rm -rf {} +
