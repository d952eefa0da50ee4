# make quickstart   install, fetch the small model, run real traffic through a local cluster
# make test         install with the test tools, run the tests
# make rdma         give .venv the pyverbs that fits this host's libibverbs
# make install      install on this host, as root: systemd/install.sh
# make wheelhouse   gather in dist/wheelhouse all that a host without a network needs to install
# make test-systemd the units under a systemd in namespaces, as root
# make test-aiperf  install aiperf, a load generator of others (0.9 GB), beside .venv, and run its line of mc-gateway(8)
# make soak         hurt a pool at random for SOAK_S seconds, and check every byte that is read; SEED=1 repeats a run
# make lint         the checks of tests/shipped alone
# make clean        remove .venv, what is beside it, and caches
#
# PYTHON=python3.12          another interpreter for .venv
# TORCH_INDEX_URL=URL        where pip also looks for torch, e.g. https://download.pytorch.org/whl/cpu: small CPU builds
# PREFIX=DIR                 of install; /opt/mooncake
# ENGINE=0                   wheelhouse and install without torch
# S3=1                       wheelhouse and install with the client for object stores
# TEST_WORKERS=0             of make test: one test after the other, in one process
# QUICKSTART_ARGS, PYTEST_ARGS, INSTALL_ARGS  passed on

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_INDEX := $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
ENGINE ?= 1
S3 ?= 0
TEST_WORKERS ?= 2
SOAK_S ?= 600
SEED ?= 1
PREFIX ?= /opt/mooncake
COMMA := ,
WHEELHOUSE ?= dist/wheelhouse
EXTRAS := $(if $(filter 0,$(ENGINE)),$(if $(filter 1,$(S3)),[s3]),[engine$(if $(filter 1,$(S3)),$(COMMA)s3)])
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check $(TORCH_INDEX)

# OpenMP threads that spin on busy cores slow a step 10-60x.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: quickstart test test-systemd test-aiperf soak rdma install wheelhouse lint clean
.DELETE_ON_ERROR:

# A person gets the table; a pipe gets the JSON object on stdout and the table on stderr.
quickstart: $(VENV)/.installed-engine
	@if [ -t 1 ]; then output=table; else output=json; fi; \
	exec $(BIN)/mcctl quickstart --output $$output $(QUICKSTART_ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow" -n $(TEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

rdma: | $(BIN)/python
	@$(BIN)/python systemd/install-pyverbs.py

install:
	@systemd/install.sh --prefix $(PREFIX) $(if $(filter 0,$(ENGINE)),--no-engine) $(if $(filter 1,$(S3)),--s3) \
	  $(INSTALL_ARGS)

# Wheels are for the Python of .venv and this kind of machine; the folder holds install.sh and its files, too. Built from
# a copy: setuptools leaves a folder build/ where it works.
wheelhouse: | $(BIN)/python
	@rm -rf $(WHEELHOUSE) && mkdir -p $(WHEELHOUSE)/source
	@cp -r pyproject.toml README.md LICENSE mcctl daemons $(WHEELHOUSE)/source
	@$(BIN)/python -m pip wheel --disable-pip-version-check $(TORCH_INDEX) --quiet --wheel-dir $(WHEELHOUSE) \
	  '$(WHEELHOUSE)/source$(EXTRAS)' >&2
	@rm -rf $(WHEELHOUSE)/source && cp -r systemd configs man $(WHEELHOUSE)
	@echo "Copy $(WHEELHOUSE) to the host and run its systemd/install.sh" >&2

test-systemd: $(VENV)/.installed-test
	REQUIRE=systemd $(BIN)/python -m pytest tests/systemd $(PYTEST_ARGS)

test-aiperf: $(VENV)/.installed-test
	$(PYTHON) -m venv $(VENV)-aiperf
	$(VENV)-aiperf/bin/python -m pip install --disable-pip-version-check --quiet 'aiperf>=0.13,<0.14'
	PATH="$(CURDIR)/$(VENV)-aiperf/bin:$$PATH" $(BIN)/python -m pytest tests/system/test_examples.py -k load_generator $(PYTEST_ARGS)

soak: $(VENV)/.installed-test
	cd tests && ../$(BIN)/python -m soak --seconds $(SOAK_S) --seed $(SEED)

lint: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/shipped $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) $(VENV)-aiperf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/.installed-engine: pyproject.toml | $(BIN)/python
	@echo "Installing mooncake-mc[engine] into $(VENV) (torch is up to 3 GB the first time, see TORCH_INDEX_URL in Makefile)" >&2
	@$(PIP_INSTALL) -e '.[engine]' >&2
	@touch $@

# The larger set holds the smaller one.
$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "Installing mooncake-mc[engine,s3,test] into $(VENV) (torch is up to 3 GB the first time, see TORCH_INDEX_URL in Makefile)" >&2
	@$(PIP_INSTALL) -e '.[engine,s3,test]' >&2
	@touch $(VENV)/.installed-engine $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not installed; install python3 (3.11 or newer), e.g. apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version) is too old: 3.11 or newer is needed; name another with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version); this takes some seconds" >&2
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
