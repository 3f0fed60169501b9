# Every target makes the virtual environment by itself if it is missing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test slow check format bench results docs clean

demo: .venv/installed
	$(BIN)/incontrast demo

test: .venv/installed
	$(BIN)/pytest -n 2 -m "not slow"

slow: .venv/installed
	$(BIN)/pytest -m slow

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python results/pages.py --check

format: .venv/installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/installed
	$(BIN)/python benchmarks/run.py

results: .venv/installed
	$(BIN)/python results/pages.py

docs: .venv/installed
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
