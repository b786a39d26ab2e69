# Two commands do everything: `make run` and `make test`. The rest are parts of them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_OUT ?= runs/split-mnist

# Many tests start a Python of their own, which takes seconds longer where nothing keeps what was compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env docs run test lint types pytest test-slow test-faults test-serving test-zoo bench bench-scale results report clean

help:
	@echo "make run        IBP-WF on Split MNIST, with a result table and a report"
	@echo "make env        the environment in .venv, with the command ibpwf"
	@echo "make test       ruff, mypy --strict and all tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-faults  kills, damage, interrupts, threads, bad input, by the thousand"
	@echo "make test-serving  servers killed, fuzzed and sent damaged files, by the thousand"
	@echo "make test-zoo   networks of timm and torchvision learn, merge and load again"
	@echo "make bench      speed and memory as ratios, and how cost grows in the small, into docs/results/bench"
	@echo "make bench-scale  how cost grows with tasks, classes, rows and parameters, into docs/results/scaling and docs/scaling.md"
	@echo "make results    rewrite the result tables, figures and the report page from docs/results"
	@echo "make report     the figures and the report page alone"
	@echo "make docs       rewrite docs/cli.md and docs/settings.md from the program"
	@echo "make clean      remove the environment and caches (data and runs stay)"

# uv when it can be had, pip otherwise; pip's find-links are handed on so that both see the same wheels.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d: set PYTHON=" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@if $(BIN)/python -m pip install --quiet uv && UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" $(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'; \
	then :; else echo "uv is not to be had here, installing with pip"; $(BIN)/python -m pip install --quiet -e '.[dev]'; fi
	@touch $@

env: $(STAMP)

run: $(STAMP)
	@$(BIN)/ibpwf run split-mnist --preset paper --seed 0 --beside router --fallback split-digits --out $(RUN_OUT) --overwrite

test: lint
	@$(MAKE) --no-print-directory -j2 types pytest  # side by side: one type checker leaves cores idle

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/mypy

pytest: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-faults: $(STAMP)
	rm -rf build/faults
	IBPWF_TALLY=build/faults $(BIN)/python -m pytest -n auto -m faults --ignore tests/serving
	$(BIN)/python -m tools.tally build/faults "make test-faults" docs/results/reliability/faults.json
	$(BIN)/python -m tools.pages faults

# schemathesis is fetched for this alone; what it brings is as in .venv already, or newer.
test-serving: $(STAMP)
	UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" $(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[fuzz]' || $(BIN)/python -m pip install --quiet -e '.[fuzz]'
	rm -rf build/serving
	IBPWF_TALLY=build/serving $(BIN)/python -m pytest -m faults tests/serving
	$(BIN)/python -m tools.tally build/serving "make test-serving" docs/results/serving/faults.json
	$(BIN)/python -m tools.pages serving-faults

test-zoo: $(STAMP)
	$(BIN)/python -m pytest tests/zoo

bench: $(STAMP)
	$(BIN)/ibpwf bench --profile --out docs/results/bench
	$(BIN)/python benchmarks/scaling.py --small --out docs/results/bench/scaling
	$(BIN)/python benchmarks/ranks.py --rows 256 --rounds 1 --seeds 1 --epochs 4 --out docs/results/bench/scaling
	$(BIN)/python benchmarks/big_table.py --rows 20000 --set epochs=2 --out docs/results/bench/scaling
	$(BIN)/python benchmarks/image_files.py --files 2000 --out docs/results/bench/scaling

bench-scale: $(STAMP)
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/big_table.py
	$(BIN)/python benchmarks/image_files.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python -m tools.pages scaling

results: $(STAMP)
	$(BIN)/python -m tools.pages
	$(MAKE) report

report: $(STAMP)
	$(BIN)/python -m tools.figures
	$(BIN)/ibpwf report docs/results -o docs/results/report.html

docs: $(STAMP)
	$(BIN)/python -m tools.command_reference docs/cli.md
	$(BIN)/python -m tools.settings_page docs/settings.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
