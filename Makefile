# A fresh machine needs Python >= 3.10, git and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two workers where there are two cores, else none.
WORKERS := $(shell test "$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)" -ge 2 && echo 2 || echo 0)

# Tests start some hundred processes, which would compile the package each.
export PYTHONDONTWRITEBYTECODE :=

# Under a minute on two cores: the DSL, the parser, the table, the checks, the committed PTX (not once more in another
# process, which `make test` has), documents, a few launches.
QUICK := tests/builder tests/lines tests/views/test_line_info.py tests/parser/test_parser.py tests/parser/test_operand_names.py tests/isa/test_isa.py tests/checks \
	tests/golden/test_golden.py tests/models/config/test_families.py \
	tests/package/test_requires.py tests/package/test_targets.py tests/package/test_parity.py \
	tests/docs/test_links.py tests/benchmarks/test_rows.py \
	tests/runtime/kv/test_kvcache.py tests/cpu/flow/test_control.py tests/cpu/flow/test_calls.py \
	--deselect tests/golden/test_golden.py::test_the_same_bytes_in_any_process_and_hash_seed

.PHONY: test quick sweep mutants coverage lint golden demo ci clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@touch $@

# Of tests with many cases one of DRAW is run; DRAW_FROM says which
DRAW ?= 5
DRAW_FROM ?= 0
export PTXGEN_DRAW_FROM := $(DRAW_FROM)
test: $(STAMP)
	PTXGEN_DRAW=$(DRAW) $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

quick: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) $(QUICK) $(PYTEST_ARGS)

# The whole suite with all of every sweep, of which `make test` draws a part (tests/support/sweep.py); an hour
sweep: $(STAMP)
	PTXGEN_SWEEP=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# What `make test` runs under coverage, and its figure in the README; twice as long
coverage: $(STAMP)
	PTXGEN_DRAW=$(DRAW) $(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report= --cov-report=json:coverage.json $(PYTEST_ARGS)
	$(BIN)/python -m tests.tools.coverage_figure coverage.json

# Small mutations of the source, and which of them the tests do not notice: hours for all of them
mutants: $(STAMP)
	$(BIN)/python -m tests.tools.mutants $(MUTANTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --output-format concise .
	$(BIN)/mypy

golden: $(STAMP)
	$(BIN)/python -m ptxgen golden check

demo: $(STAMP)
	$(BIN)/python -m ptxgen.demo

clean:
	rm -rf build dist *.egg-info .coverage .coverage.* coverage.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
