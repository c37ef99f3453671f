# make demo and make test need make and a Python with venv; all else they set up in .venv, by themselves.
PYTHON := python3
ARGS :=
TORCH :=
DEVICE := cuda

# Another version of torch has an environment of its own. Types are those of the torch in constraints.txt.
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
CHECKS := $(if $(TORCH),,format-check lint types)
BIN := $(VENV)/bin
# One stamp for each interpreter asked for: another PYTHON= makes the environment anew.
READY := $(VENV)/.ready-$(subst /,_,$(PYTHON))
CODE := src tests corpus tools examples benchmarks docs/_site conftest.py
CODE_BLOCKS := README.md README.zh-CN.md docs src

# Whole files side by side, one thread each (the blocks of a page share their names; conftest.py deals out two large
# files test by test). ARGS=-n0 runs all in one process.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=loadfile --durations=10

PIP = $(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt
INSTALL = $(PIP) $(if $(TORCH),torch==$(TORCH))
ifeq ($(TORCH),nightly)
INSTALL = $(PIP) --pre --extra-index-url https://download.pytorch.org/whl/nightly/cpu torch
else ifeq ($(TORCH),lowest)
INSTALL = $(PIP) uv && $(BIN)/uv pip install --quiet --python $(BIN)/python --resolution lowest-direct
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start interpreters, each of which would compile gradgate anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test format format-check lint types suite corpus docs-test docs bench gpu package clean

help:  ## say what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */\1|/' | while IFS='|' read -r name text; do \
	    printf '  make %-13s %s\n' "$$name" "$$text"; done
	@echo
	@echo "  PYTHON=python3.12 picks the interpreter; ARGS='...' goes to the program that a target runs."
	@echo "  make gpu DEVICE=cpu tries what runs without a GPU, and only prints."
	@echo "  TORCH=2.15.0 tests with that version of torch, in .venv-torch-2.15.0 (several gigabytes)."
	@echo "  TORCH=nightly tests with the build of last night, TORCH=lowest with all the lowest versions that are allowed."

demo: $(READY)  ## train in micro-batches beside the whole batch, and check scripts with a mistake in them
	@echo "==> demo: examples/demo.py"
	@$(BIN)/python examples/demo.py $(ARGS)
	@for name in diabetes digits padding rings; do \
	    for script in $$name $${name}_fixed; do \
	        echo; echo "==> demo: gradgate check examples/checked/$$script.py"; \
	        $(BIN)/gradgate check examples/checked/$$script.py; found=$$?; \
	        case $$script in *_fixed) right=0;; *) right=1;; esac; \
	        test $$found -eq $$right || exit 1; \
	    done; \
	done

test: $(CHECKS) suite  ## all that must pass: format, lint, types, tests, examples in the docs
	@echo "==> all passed"

format: $(READY)  ## rewrite the code in the one format
	@echo "==> format"
	@$(BIN)/ruff format $(CODE)

format-check: $(READY)
	@echo "==> format: checked, nothing rewritten"
	@$(BIN)/ruff format --check --diff $(CODE)

lint: $(READY)  ## likely mistakes (ruff)
	@echo "==> lint"
	@$(BIN)/ruff check $(CODE) $(ARGS)

types: $(READY)  ## types, strictly (mypy)
	@echo "==> types"
	@$(BIN)/mypy $(ARGS)

suite: $(READY)  ## tests, docstring examples, code blocks of README and docs
	@echo "==> suite"
	@$(PYTEST) $(ARGS)

corpus: $(READY)  ## the tests of all scripts of the corpus, of which the suite runs the regression set; then the score
	@echo "==> corpus"
	@GRADGATE_CORPUS=all $(PYTEST) tests/test_scripts.py $(ARGS)
	@$(BIN)/python -m corpus.score gradgate

docs-test: $(READY)  ## only the docstring examples and the code blocks of README and docs
	@echo "==> examples in docstrings, README and docs"
	@$(PYTEST) $(CODE_BLOCKS) $(ARGS)

docs: docs-test  ## the documents as a site, in build/docs, after their examples have run
	@echo "==> docs: build/docs/index.html"
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees -c docs/_site . build/docs

bench: $(READY)  ## every benchmark, one after the other
	@set -e; for file in $(filter-out benchmarks/gpu.py,$(wildcard benchmarks/[!_]*.py)); do echo "==> $$file"; $(BIN)/python "$$file" $(ARGS); done

gpu: $(READY)  ## what needs a GPU: tests, time, plans, CUDA graphs, NCCL; writes a section of docs/performance.md
	@$(BIN)/python benchmarks/gpu.py --device $(DEVICE) $(if $(filter cpu,$(DEVICE)),,--write) $(ARGS)

package:  ## build wheel and sdist into dist/, check both, and try the wheel in an empty environment
	@echo "==> package: dist/"
	@rm -rf dist build/package && "$(PYTHON)" -m venv build/package/tools && "$(PYTHON)" -m venv build/package/empty
	@build/package/tools/bin/python -m pip install --quiet -c constraints.txt build twine
	@build/package/tools/bin/python -m build --outdir dist . >build/package/build.log || { cat build/package/build.log; exit 1; }
	@build/package/tools/bin/twine check --strict dist/*
	@wheel=$$(echo dist/*.whl) && build/package/empty/bin/python -m pip install --quiet -c constraints.txt "$$wheel[cli,show]"
	@cd build/package && empty/bin/python -I ../../.ci/try_package.py && empty/bin/gradgate --version

clean:  ## remove the environment and everything that can be made again
	rm -rf .venv .venv-torch-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "There is no '$(PYTHON)' here. Name a Python 3.10 or later: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "'$(PYTHON)' is $$("$(PYTHON)" --version 2>&1), gradgate needs Python 3.10 or later." >&2; \
	    echo "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@version='import sys; print(sys.version_info[:3])'; \
	if [ "$$($(BIN)/python -c "$$version" 2>/dev/null)" != "$$("$(PYTHON)" -c "$$version")" ] \
	    || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    echo "==> making $(VENV) with $$("$(PYTHON)" --version)"; \
	    "$(PYTHON)" -m venv --clear $(VENV) || { \
	        echo "'$(PYTHON) -m venv' does not work here; on Debian and Ubuntu it is in the package python3-venv." >&2; \
	        exit 1; }; \
	fi
	@echo "==> installing gradgate and what it is tested with into $(VENV) (PyTorch is large: some minutes the first time)"
	@grep -v -E '$(if $(TORCH),^(torch|setuptools)==,^$$)' constraints.txt > $(VENV)/constraints.txt
	@$(INSTALL) -e '.[dev]'
	@rm -f $(VENV)/.ready-*
	@touch $@
