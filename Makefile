# Every target makes the virtual environment by itself if it is missing.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # tests start many processes: what one has compiled the others read

# What other processors are like: instruction sets that torch may not use, and thread counts.
PORTABLE := "default SSE41 1" "default SSE41 2" "avx2 AVX2 1" "avx2 AVX2 2"

.PHONY: demo test test-portable slow mutants check format bench results docs clean

demo: .venv/installed
	$(BIN)/incontrast demo

test: .venv/installed
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-portable: .venv/installed
	for setting in $(PORTABLE); do \
	  set -- $$setting; echo "ATEN_CPU_CAPABILITY=$$1 ONEDNN_MAX_CPU_ISA=$$2 OMP_NUM_THREADS=$$3"; \
	  ATEN_CPU_CAPABILITY=$$1 ONEDNN_MAX_CPU_ISA=$$2 OMP_NUM_THREADS=$$3 INCONTRAST_THREADS=$$3 \
	    $(BIN)/pytest -n 2 --dist worksteal -m "not slow" || exit 1; \
	done

slow: .venv/installed
	$(BIN)/pytest -m slow

mutants: .venv/installed
	$(BIN)/python tools/mutants.py

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m paper.write_pages --check
	$(BIN)/python benchmarks/parity_tables.py page --check

format: .venv/installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/installed
	$(BIN)/python benchmarks/run.py

results: .venv/installed
	$(BIN)/python -m paper.write_pages
	$(BIN)/python benchmarks/parity_tables.py page

docs: .venv/installed
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
