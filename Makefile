# Everything a contributor runs. Needs Python 3.11 or newer and make; no root, no Docker.
# `uv` is taken from PATH when it is there, otherwise it is installed into .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
OLDEST_SPARK := .venvs/iceberg
LAKEHOUSE := .venvs/lakehouse $(OLDEST_SPARK)
UV := $(shell if uv --version >/dev/null 2>&1; then echo uv; else echo $(BIN)/uv; fi)
# Pythons for which every test server has a wheel come first.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
# Most tests wait for servers and leases, and use a fifth of a core; three workers are with Spark for most of the time.
WORKERS ?= $(shell echo $$((5 * $(CORES))))
PYTEST = -m pytest -rs -n $(WORKERS) --dist loadgroup
# Contracts that run in `make test-fast`, beside the tests that need no server.
CONTRACTS := tests/queue/test_gateways.py tests/results/test_contract.py tests/tasks/test_queue_contract.py
# Folders whose clients can log in as users with few rights, and of these the suites that `make test-acl` runs.
ROLES := tests/streams tests/queue tests/tasks tests/balancer tests/spark/sink tests/spark/source
ACL := $(addprefix tests/streams/test_,publishing.py deduplication.py recovery.py dead_letters.py redrive.py) \
	$(addprefix tests/queue/test_,gateways.py processing.py failures.py administration.py) \
	$(addprefix tests/tasks/test_,queue_contract.py redis_queue.py limits.py lanes.py) \
	$(addprefix tests/balancer/test_,life.py run.py) \
	tests/spark/sink/test_partition_writes.py tests/spark/source/test_stream_reader.py tests/spark/source/test_scan.py
INSTALL := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip install --quiet
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	--custom-compile-command "make lock" --no-emit-index-url --no-emit-find-links

.PHONY: help demo pictures test test-acl test-all test-bare test-browser test-failover test-fast test-interop test-lakehouse test-spark41 test-yarn check bench bench-archive bench-commits bench-inspector bench-queue campaign \
	bench-scripts bench-spark bench-tasks format reference sync lock audit sbom dist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Watch a queue survive a killed worker, on an embedded server (ARGS="--stay" keeps it running)
	@$(BIN)/python -m penstock demo $(ARGS)

test: $(VENV)/.dev ## Run the tests on all cores (ARGS="..." goes to pytest)
	@$(BIN)/python $(PYTEST) $(ARGS)

test-fast: $(VENV)/.dev ## Run unit tests, contracts on one server and Spark without Java, in two minutes
	@$(BIN)/python $(PYTEST) --matrix one -m "not java" tests/unit tests/spark $(CONTRACTS) $(ARGS)

test-all: $(VENV)/.dev ## Run every test on every server, and again as users with few rights
	@$(BIN)/python $(PYTEST) --matrix all $(ARGS)
	@$(BIN)/python $(PYTEST) --matrix all --acl -m "not java" $(ROLES) $(ARGS)

test-acl: $(VENV)/.dev ## Run contracts and main suites as users with the rights that `penstock acl` prints
	@$(BIN)/python $(PYTEST) --matrix one --acl -m "not java" $(ACL) $(ARGS)

test-bare: WORKERS = $(CORES) # without a server nobody waits for one
test-bare: $(VENV)/.dev ## Run the tests without any server, PostgreSQL, faketime and Java: what needs one skips (needs Linux)
	@$(BIN)/python tools/bare_machine.py --wheels $(BIN)/python $(PYTEST) $(ARGS)

test-browser: $(VENV)/.dev ## Use the dashboard and look at reports in a real browser (needs Chromium)
	@PENSTOCK_BROWSER=1 $(BIN)/python -m pytest tests/browser $(ARGS)

pictures: $(VENV)/.dev ## Take the pictures of the dashboard and of a report that the documentation shows (needs Chromium)
	@PENSTOCK_BROWSER=1 PENSTOCK_PICTURES=1 $(BIN)/python -m pytest tests/browser -k pictures

test-failover: $(VENV)/.dev ## Measure take-overs: streams of a killed owner, masters of Sentinel and cluster, a result back-end
	@PENSTOCK_TIMED=1 $(BIN)/python -m pytest -rP tests/faults/test_*_times.py $(ARGS)

test-interop: $(VENV)/.dev ## Run Python and Go peers of one balanced service together (needs Go and its module proxy)
	@PENSTOCK_INTEROP=1 $(BIN)/python -m pytest tests/interop $(ARGS)

test-lakehouse: $(LAKEHOUSE:=/.done) ## Run pipelines with the jars of Delta Lake, Iceberg and S3 (needs Maven Central)
	@ran= failed=; for env in $(LAKEHOUSE); do \
		PENSTOCK_LAKEHOUSE=1 $$env/bin/python -m pytest -o cache_dir=$$env/pytest_cache tests/lakehouse $(ARGS); \
		case $$? in 0) ran=1 ;; 5) [ -n "$(ARGS)" ] || failed=1 ;; *) failed=1 ;; esac; \
	done; [ -n "$$ran" ] && [ -z "$$failed" ] # 5: the given ARGS leave no test to this environment

test-spark41: $(OLDEST_SPARK)/.done ## Run the tests of Spark on the oldest Spark that we support
	@$(OLDEST_SPARK)/bin/python $(PYTEST) -o cache_dir=$(OLDEST_SPARK)/pytest_cache tests/spark $(ARGS)

test-yarn: $(VENV)/.dev ## Run pipelines and archives on Hadoop's YARN and HDFS, and on executors with disks of their own (needs Maven Central)
	@PENSTOCK_YARN=1 $(BIN)/python -m pytest tests/yarn $(ARGS)

check: $(VENV)/.dev ## Format, lint, types, direction of imports, freshness of the sync half
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/generate_sync.py --check

bench: $(VENV)/.dev ## Measure Penstock beside its peers (ARGS="..." goes to the harness)
	@$(BIN)/python -m bench $(ARGS)

campaign: $(VENV)/.dev ## Break processes, links and servers for a quarter of an hour, and count what is lost (ARGS="--list")
	@$(BIN)/python -m campaign $(ARGS)

bench-queue: $(VENV)/.dev ## Measure the message queue beside redis-message-queue
	@$(BIN)/python -m bench --peers queue --tests queue $(ARGS)

bench-scripts: $(VENV)/.dev ## Measure how long each script holds a server up when every entry has a megabyte
	@$(BIN)/python -m bench.script_times --strict $(ARGS)

bench-spark: $(VENV)/.dev ## Measure the Spark source and sink beside the limits of the same work
	@$(BIN)/python -m bench.spark $(ARGS)

bench-archive: $(VENV)/.dev ## Archive, verify and replay messages at two sizes: time and memory for each (ARGS="--big 10000000")
	@$(BIN)/python -m bench.archive $(ARGS)

bench-commits: $(VENV)/.dev ## Commit to an archive 100,000 times, and compare what it costs then with one of 100 (takes an hour or more)
	@$(BIN)/python -m bench.archive_commits --commits 100000 --strict $(ARGS)

bench-inspector: $(VENV)/.dev ## Measure what the Inspector and the dashboard cost a server with a million pending entries
	@$(BIN)/python -m bench.inspector --strict $(ARGS)

bench-tasks: $(VENV)/.dev ## Measure tasks with results beside other task queues
	@$(BIN)/python -m bench.tasks $(ARGS)

format: $(VENV)/.dev ## Format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

reference: $(VENV)/.dev ## Write the reference of the command line from the commands
	@$(BIN)/python tools/cli_reference.py

sync: $(VENV)/.dev ## Write the sync half from the async half
	@$(BIN)/python tools/generate_sync.py

lock: $(BIN)/python ## Lock the newest allowed versions into requirements/
	@$(COMPILE) --all-extras --group dev pyproject.toml --output-file requirements/dev.txt
	@$(COMPILE) --extra embedded --extra cli --extra dashboard --extra spark --extra java --group build --constraint requirements/dev.txt pyproject.toml \
		--output-file requirements/demo.txt
	@$(COMPILE) --group lakehouse --output-file requirements/lakehouse.txt
	@$(COMPILE) --group iceberg --output-file requirements/iceberg.txt
	@! grep -nEi 'https?:|index-url|find-links' requirements/*.txt

audit: $(BIN)/python ## Look for known vulnerabilities in everything that is locked
	@$(UV) tool run --quiet pip-audit --strict --disable-pip --require-hashes --requirement requirements/dev.txt

sbom: $(BIN)/python ## Write the bill of materials of Penstock with all its extras: dist/penstock.cdx.json (CycloneDX)
	@mkdir -p dist
	@$(COMPILE) --no-upgrade --all-extras --constraint requirements/dev.txt pyproject.toml --output-file dist/requirements.txt
	@$(UV) tool run --quiet --from cyclonedx-bom cyclonedx-py requirements dist/requirements.txt --pyproject pyproject.toml \
		--mc-type library --output-reproducible --output-file dist/penstock.cdx.json
	@rm dist/requirements.txt

dist: $(BIN)/python ## Build the packages of a release
	@$(UV) build --quiet --out-dir dist

clean: ## Remove the environment and everything that was built
	@rm -rf $(VENV) .venvs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environment ---------------------------------------------------------------------------------

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Penstock needs Python 3.11 or newer, and none is on PATH. Install one, or say: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
	@if [ "$(UV)" = uv ]; then \
		uv venv --quiet --python "$$(command -v $(PYTHON))" $(VENV); \
	else \
		$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
			echo "No virtual environment could be made: install python3-venv (Debian, Ubuntu) or uv." >&2; exit 1; }; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'; \
	fi

$(VENV)/.demo: $(BIN)/python requirements/demo.txt pyproject.toml
	@echo "Installing Penstock and its demo into $(VENV) ..."
	@$(INSTALL) --require-hashes -r requirements/demo.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(BIN)/python requirements/dev.txt pyproject.toml
	@echo "Installing Penstock and its tools into $(VENV) ..."
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.demo

# Another Spark, over the packages of the environment above; without uv's cache, which would keep several copies of it.
.venvs/%/.done: requirements/%.txt $(VENV)/.dev
	@echo "Installing another Spark into $(@D) ..."
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@VIRTUAL_ENV=$(CURDIR)/$(@D) $(UV) pip install --quiet --no-cache --require-hashes -r $<
	@$(@D)/bin/python -c 'import sys, sysconfig, pathlib; \
		pathlib.Path(sysconfig.get_path("purelib"), "over_dev.pth").write_text(f"import site; site.addsitedir({sys.argv[1]!r})\n")' \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@
