# make quickstart   install, fetch the small model, run real traffic through a local cluster
# make test         install with the test tools, run the tests
# make rdma         give .venv the pyverbs that fits this host's libibverbs
# make lint         the checks of tests/shipped alone
# make clean        remove .venv and caches
#
# PYTHON=python3.12          another interpreter for .venv
# TORCH_INDEX_URL=URL        where pip also looks for torch, e.g. an index of CPU builds
# QUICKSTART_ARGS, PYTEST_ARGS  passed on

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_INDEX := $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check $(TORCH_INDEX)

# OpenMP threads that spin on busy cores slow a step 10-60x.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: quickstart test rdma lint clean
.DELETE_ON_ERROR:

# A person gets the table; a pipe gets the JSON object on stdout and the table on stderr.
quickstart: $(VENV)/.installed-engine
	@if [ -t 1 ]; then output=table; else output=json; fi; \
	exec $(BIN)/mcctl quickstart --output $$output $(QUICKSTART_ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

rdma: | $(BIN)/python
	@$(BIN)/python systemd/install-pyverbs.py

lint: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/shipped $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/.installed-engine: pyproject.toml | $(BIN)/python
	@echo "Installing mooncake-mc[engine] into $(VENV) (torch is a few hundred MB the first time)" >&2
	@$(PIP_INSTALL) -e '.[engine]' >&2
	@touch $@

# The larger set holds the smaller one.
$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "Installing mooncake-mc[engine,test] into $(VENV) (torch is a few hundred MB the first time)" >&2
	@$(PIP_INSTALL) -e '.[engine,test]' >&2
	@touch $(VENV)/.installed-engine $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not installed; install python3 (3.11 or newer), e.g. apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version) is too old: 3.11 or newer is needed; name another with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
