# Each of these does everything, set-up included: `make demo`, `make test`, `make examples`.

PYTHON ?= python3
VENV := .venv
NEWER := .venv-3.12
# What touches jax, processes, or the version of Python.
NEWER_TESTS := tests/place tests/produce tests/monitor tests/streams tests/test_faults.py \
  tests/test_hard_cases.py tests/test_leases.py tests/test_readme.py tests/test_same_bytes.py \
  tests/test_user_errors.py
PARALLEL := --numprocesses=3 --dist=worksteal
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: demo examples test test-oldest test-where-newer test-newer exhaustive lint bench clean

demo: $(VENV)/examples.stamp
	$(VENV)/bin/python examples/demo.py

examples: $(VENV)/examples.stamp
	$(VENV)/bin/python examples/check.py

test: lint test-oldest test-where-newer

test-oldest: $(VENV)/tests.stamp
	$(VENV)/bin/python -m pytest $(PARALLEL)

test-where-newer:
	@if newer="$$(.ci/find-python 3.12)"; then \
	  $(MAKE) test-newer NEWER_PYTHON="$$newer"; \
	else \
	  echo "No Python 3.12 here: the tests ran on one version only."; \
	fi

test-newer: $(NEWER)/tests.stamp
	$(NEWER)/bin/python -m pytest -m "not endurance and not matrix and not exhaustive" $(PARALLEL) $(NEWER_TESTS)

exhaustive: $(VENV)/tests.stamp
	$(VENV)/bin/python -m pytest -m "" $(PARALLEL)

lint: $(VENV)/tests.stamp
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

bench: $(VENV)/benchmarks.stamp
	$(VENV)/bin/python benchmarks/throughput.py
	$(VENV)/bin/python benchmarks/planning.py
	$(VENV)/bin/python benchmarks/workers.py
	$(VENV)/bin/python benchmarks/streams.py
	$(VENV)/bin/python benchmarks/tensorstores.py
	$(VENV)/bin/python benchmarks/composition.py
	$(VENV)/bin/python benchmarks/files.py
	$(VENV)/bin/python benchmarks/images.py
	$(VENV)/bin/python benchmarks/tokens.py
	$(VENV)/bin/python benchmarks/packing.py
	$(VENV)/bin/python benchmarks/placement.py
	$(VENV)/bin/python benchmarks/monitoring.py
	$(VENV)/bin/python benchmarks/transfer.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/%.stamp: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[$*]'
	touch $@

$(NEWER)/tests.stamp: pyproject.toml
	$(NEWER_PYTHON) -m venv $(NEWER)
	$(NEWER)/bin/python $(PIP_INSTALL) -e '.[tests]'
	touch $@

clean:
	rm -rf $(VENV) $(NEWER) build dist *.egg-info
