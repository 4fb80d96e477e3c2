# Every target sets up what it needs. PYTHON names the interpreter for the venv, ARGS goes to pytest (or toolhub bench).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
LOCK := requirements/ci.txt
DOCS_LOCK := requirements/docs.txt

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set (in many containers), every worker of the tests and each of the hundreds of programs that they start
# compiles all modules again: a seventh of the time of `make test`.
unexport PYTHONDONTWRITEBYTECODE

define check_python
import sys
if sys.version_info < (3, 11):
    sys.exit("toolhub needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0]
             + "; name another one: make PYTHON=/path/to/python3.12")
import importlib.util
if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
    sys.exit("$(PYTHON) cannot make virtual environments; install its venv module"
             " (on Debian: apt-get install python3-venv) and run make again")
endef
export check_python

.DEFAULT_GOAL := help
.PHONY: help venv check test test-all test-servers test-user test-quick engine test-engine lint demo bench wheel-test lock audit docs structure pictures release clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-14s %s\n' "$$name" "$$text"; done

venv: $(VENV)/.installed-test ## Create .venv and install toolhub there with what tests need

check: lint test-quick ## Check style and types, and run the tests of pure rules

# Two workers more than cores, see tests/conftest.py. A file's tests stay together, because they share servers. Files keep
# their order: by default the files with the fewest tests would be last, and those take longest.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

test: venv test-servers ## Run the tests but those marked slow
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(ARGS)

test-all: venv test-servers ## Run all tests, slow ones too
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-servers: venv ## Install the third-party MCP servers that tests use (in ~/.cache/toolhub-test)
	$(BIN)/python -m testbed.third_party

test-user: venv ## Run the tests of the sandboxes as an ordinary user
	$(BIN)/python tests/as_user.py

test-quick: venv ## Run the tests of pure rules, which every supported Python runs
	$(BIN)/python -m pytest -m quick $(PARALLEL) $(ARGS)

engine: venv ## Install vLLM for CPU and small models, once (in ~/.cache/toolhub-test; 2.6 GB)
	$(BIN)/python -m testbed.engine.install

test-engine: engine $(VENV)/.installed-agent ## Run the tests with a real inference engine
	$(BIN)/python -m pytest tests/engine $(ARGS)

lint: venv ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

demo: $(VENV)/.installed-hub,servers ## Show a hub keeping tools alive through crashes
	$(BIN)/toolhub demo

# What cannot be installed (no Chromium, no room for vLLM) is left out of the report by name; the rest is measured. The
# test extra has what our own servers need.
bench: venv $(VENV)/.installed-bench ## Measure toolhub beside what people use today; makes benchmarks/README.md
	-@$(BIN)/python -m testbed.third_party
	-@$(BIN)/python -m benchmarks.common.baselines
	-@$(BIN)/python -m testbed.engine.install
	$(BIN)/toolhub bench all $(ARGS)

wheel-test: venv ## Build the wheel and test it in environments of its own
	$(BIN)/python -m pytest tests/packaging $(ARGS)

# What `make docs` adds has the versions of the tests' lock where both need a package: they share an environment.
COMPILE := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' pyproject.toml
lock: venv ## Choose the versions in requirements/ anew, with the hashes of their files (needs the network)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/$(COMPILE) --extra test --output-file $(LOCK)
	$(BIN)/$(COMPILE) --extra docs --constraint $(LOCK) --output-file $(DOCS_LOCK)

audit: $(VENV)/.created ## Look for known vulnerabilities in the versions of requirements/ (needs the network)
	@test -x $(VENV)/audit/bin/pip-audit || \
		{ $(BIN)/python -m venv $(VENV)/audit && $(VENV)/audit/bin/python -m pip install --quiet pip-audit; }
	$(VENV)/audit/bin/pip-audit --require-hashes --disable-pip --requirement $(LOCK) --requirement $(DOCS_LOCK)

docs: $(VENV)/.installed-docs ## Build the documentation into build/docs/html and check its links
	PYTHONPATH=docs $(BIN)/python -m docsite

structure: venv ## Write the structure of toolhub/, from its imports, into docs/architecture.md
	PYTHONPATH=docs $(BIN)/python -m docsite.structure

pictures: venv ## Draw the pictures of the documentation, docs/pictures/*.svg
	PYTHONPATH=docs $(BIN)/python -m docsite.pictures

release: venv ## Build, check and tag a version, e.g. make release VERSION=0.1.0; publishes nothing
	.ci/release '$(VERSION)'

clean: ## Remove build output and tool caches, but not .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Tests run with the versions of the lock, whatever has been released since; pip checks the hash of every file.
$(VENV)/.installed-test: $(LOCK) pyproject.toml $(VENV)/.created
	@echo "installing the versions of $(LOCK) into $(VENV) (about two minutes the first time) ..."
	@$(BIN)/python -m pip uninstall --quiet --yes toolhub 2>/dev/null # its name before toolhub-runtime
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement $(LOCK)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-docs: $(DOCS_LOCK) $(VENV)/.installed-test
	@echo "installing the versions of $(DOCS_LOCK) into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement $(DOCS_LOCK)
	@touch $@

# One stamp per set of extras; pip runs again only when the dependencies may have changed.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	@echo "installing toolhub-runtime[$*] into $(VENV) (about half a minute the first time) ..."
	@$(BIN)/python -m pip uninstall --quiet --yes toolhub 2>/dev/null # its name before toolhub-runtime
	@$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "'$(PYTHON)' was not found; toolhub needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c "$$check_python"
	$(PYTHON) -m venv $(VENV)
	@touch $@
