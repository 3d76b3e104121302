# A fresh machine needs Python >= 3.10, git and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two workers where there are two cores, else none.
WORKERS := $(shell test "$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)" -ge 2 && echo 2 || echo 0)

.PHONY: test lint golden demo ci clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@touch $@

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

golden: $(STAMP)
	$(BIN)/python -m ptxgen golden check

demo: $(STAMP)
	$(BIN)/python -m ptxgen.demo

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
