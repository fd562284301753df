# Two commands matter: `make demo` and `make test`. Each makes its own virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE := engines/smollm2-135m-q4_1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint types tests soak clean

demo: $(VENV)/installed
	@test -f $(ENGINE)/manifest.json || $(BIN)/llmc build "$$($(BIN)/python -m llmc.compiler.sources.demo smollm2)" -o $(ENGINE)
	$(BIN)/llmc run $(ENGINE) --max-tokens 96 -p "Why is the sky blue? Answer in two sentences."

test: lint types tests

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/installed
	$(BIN)/mypy

tests: $(VENV)/installed
	$(BIN)/python -m pytest -q -n 2

soak: $(VENV)/installed
	$(BIN)/python -m pytest -q -n 2 --soak
	$(BIN)/python -m tests.cuda.soak

$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing llmc and what it is built and tested with into $(VENV): a minute or two, without a word"
	$(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet --editable ".[bench,build,cuda,oracle,serve,test]"
	touch $@

clean:
	rm -rf $(VENV) engines build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
