# make test   installs what the tests need and runs them      make demo    the main job on real data
# make test AREA=scan    what a change to one part needs      make test SLOW=1    all tests, as CI does
# make check  style, types, imports                            make up      the whole system on this machine
# The rest: make help
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Set PYTHON to choose another interpreter: make test PYTHON=python3.13
PYTHON ?=
# More options for pytest: make test PYTEST_FLAGS="-k compaction -x"
PYTEST_FLAGS ?=
# What a change to one part of the project needs: make test AREA=scan, or AREA="scan write"; without it all tests
AREA ?=
# SLOW=1 runs the tests marked "slow" too, SLOW="spark iceberg" those of some areas, SLOW=3/8 an eighth of them; an AREA runs its own
SLOW ?= $(AREA)
# The address of the repository on the web, for the metadata of what make dist builds
REPOSITORY ?=
# Where the site of make docs will be
SITE ?=
# More options for make bench-peers: python -m bench.peers --help
BENCH_FLAGS ?=
# How many processes run tests; 0 means only pytest's own, which a debugger needs
WORKERS ?= auto

DEV := .venv/bin
DEMO := .venv-demo/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export SAM_CLI_TELEMETRY := 0

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 21

# ---- environments: plain venv and pip, from hashed locks ------------------------------------------------------------
# A stamp in each says which lock it was made from: nothing is installed, and no network used, until that changes.

.PHONY: setup
setup: .venv/.installed .venv-sam/.installed .venv-iceberg/.installed .venv-dbt/.installed ## what development and tests need

.venv/.installed: locks/dev.txt pyproject.toml simulator/pyproject.toml locks/install.sh
	@locks/install.sh .venv locks/dev.txt --editable . simulator

.venv-demo/.installed: locks/demo.txt pyproject.toml simulator/pyproject.toml locks/install.sh
	@locks/install.sh .venv-demo locks/demo.txt --editable . simulator

.venv-sam/.installed: locks/sam.txt locks/install.sh
	@locks/install.sh .venv-sam locks/sam.txt

.venv-iceberg/.installed: locks/iceberg.txt locks/install.sh
	@locks/install.sh .venv-iceberg locks/iceberg.txt

.venv-dbt/.installed: locks/dbt.txt locks/install.sh
	@locks/install.sh .venv-dbt locks/dbt.txt --editable .

.venv-peers/.installed: locks/peers.txt locks/install.sh
	@locks/install.sh .venv-peers locks/peers.txt

.venv-lint/.installed: locks/lint.txt locks/install.sh
	@locks/install.sh .venv-lint locks/lint.txt

.venv-docs/.installed: locks/docs.txt locks/install.sh
	@locks/install.sh .venv-docs locks/docs.txt

.venv-release/.installed: locks/release.txt locks/install.sh
	@locks/install.sh .venv-release locks/release.txt

# ---- tests ----------------------------------------------------------------------------------------------------------

.PHONY: test
# Python keeps compiled code, whatever this machine's settings: hundreds of tests start processes that import the package.
test: setup ## install what tests need, then run them: all but the slow ones, those of AREA=scan, or all with SLOW=1
	@scripts/minio.sh install --try
	@scripts/porcupine.sh install --try
	@scripts/spark_jars.sh install --try
	@scripts/spark_jars.sh install iceberg --try
	@[ -e .venv/spark.jsa ] || $(DEV)/python tests/support/spark_jvm.py 2>/dev/null || true
	@unset PYTHONDONTWRITEBYTECODE; paths=$$($(DEV)/python tests/support/areas.py $(AREA)) && \
		$(DEV)/python -m pytest -n $(WORKERS) --slow "$(SLOW)" $(PYTEST_FLAGS) $$paths

.PHONY: test-long
test-long: export DOLMEN_LONG := 1
test-long: SLOW := 1
test-long: test ## all tests, with the long random runs and histories

.PHONY: test-spark-versions
test-spark-versions: ## the tests of Spark on PySpark 3.5, 4.0 and 4.3 (see scripts/spark_versions.sh)
	@scripts/spark_versions.sh

.PHONY: check
check: .venv/.installed ## style, formatting, types, import directions
	@failed=0; \
	$(DEV)/ruff check . || failed=1; \
	$(DEV)/ruff format --check . || failed=1; \
	$(DEV)/mypy || failed=1; \
	$(DEV)/lint-imports || failed=1; \
	exit $$failed

.PHONY: check-template
check-template: .venv/.installed .venv-lint/.installed ## cfn-lint and checkov on template.yaml
	@scripts/lint-template.sh

.PHONY: fix
fix: .venv/.installed ## let ruff fix style and formatting
	@$(DEV)/ruff check --fix .
	@$(DEV)/ruff format .

.PHONY: nightly
nightly: simulation interleavings soak mutations test-long ## what CI does each night, for hours

.PHONY: simulation
simulation: .venv/.installed ## random histories in a simulated world, new ones each time: HISTORIES=2500
	@$(DEV)/dolmen simulate --steps 4000 --histories $(or $(HISTORIES),2500) --jobs $$(nproc 2>/dev/null || echo 2)

.PHONY: interleavings
interleavings: .venv/.installed ## pairs of calls in every order of their requests, with a fault at every point: FAULTS=all
	@$(DEV)/python -m dolmen_simulator.interleavings --all $(if $(filter all,$(FAULTS)),,--quick)

.PHONY: mutations
mutations: .venv/.installed ## break the code on purpose, and check that each break is noticed; writes docs/mutations.md
	@PYTHONPATH=tests $(DEV)/python -m mutations --write

# ---- running it -----------------------------------------------------------------------------------------------------

.PHONY: demo
demo: .venv-demo/.installed ## the main job on real data, on a plain directory
	@$(DEMO)/python examples/demo.py

.PHONY: up
up: .venv-demo/.installed ## the whole system on this machine: drop files and delete requests into .local/
	@$(DEMO)/dolmen local

.PHONY: minio
minio: ## a real S3 server on this machine (needs Go the first time): MINIO_DATA=folder
	@scripts/minio.sh start $(MINIO_DATA)

.PHONY: minio-install
minio-install: ## build that server, and the checker of histories, once, into ~/.cache/dolmen
	@scripts/minio.sh install
	@scripts/porcupine.sh install

.PHONY: spark-jars
spark-jars: .venv/.installed ## fetch the jars by which Spark reads S3 and Iceberg, into ~/.cache/dolmen
	@scripts/spark_jars.sh install
	@scripts/spark_jars.sh install iceberg

.PHONY: spark-catalog
spark-catalog: .venv/.installed ## the Spark catalog as a jar, for spark-sql and Thrift (needs a JDK), into build/
	@mkdir -p build && $(DEV)/python -m dolmen.spark.catalog_jar build/dolmen-spark-catalog.jar
	@echo "$(CURDIR)/build/dolmen-spark-catalog.jar"

.PHONY: soak
soak: setup ## the whole pipeline on MinIO, its processes killed at random, for MINUTES=60
	@scripts/minio.sh install
	@$(DEV)/python scripts/soak.py --minutes $(or $(MINUTES),60) $(SOAK_FLAGS)

.PHONY: bench
bench: .venv/.installed ## measure, and write docs/benchmarks.md
	@$(DEV)/python -m bench --write

.PHONY: bench-quick
bench-quick: .venv/.installed ## what got slower than the figures in bench/quick.json; 3 minutes (BENCH_FLAGS=--record writes them)
	@unset PYTHONDONTWRITEBYTECODE; $(DEV)/python -m bench.quick $(BENCH_FLAGS)

.PHONY: bench-peers
# Some 25 minutes, best on a machine with nothing else to do. An interrupted run continues; BENCH_FLAGS=--fresh starts over.
# Python keeps compiled code, as in an installed package: the start of new processes is measured, too.
bench-peers: .venv/.installed .venv-peers/.installed .venv-iceberg/.installed ## compare with Delta, Iceberg, Lance, DuckLake (BENCH_FLAGS="--scale 0.1")
	@scripts/minio.sh install --try
	@unset PYTHONDONTWRITEBYTECODE; $(DEV)/python -m compileall -q shared/dolmen bench && \
		$(DEV)/python -m bench.peers --write $(BENCH_FLAGS)

.PHONY: cost
cost: .venv/.installed ## count requests, and write docs/cost.md
	@$(DEV)/python -m bench.cost --write

.PHONY: build
build: .venv-sam/.installed ## the Lambda functions and layers, into .aws-sam/
	@.venv-sam/bin/sam build

# ---- upkeep ---------------------------------------------------------------------------------------------------------

.PHONY: lock
lock: ## regenerate the lock files: make lock LOCK_FLAGS=--upgrade
	@locks/update.sh $(LOCK_FLAGS)

.PHONY: dist
dist: .venv-release/.installed ## wheels and source distributions, into dist/: make dist REPOSITORY=https://...
	@.venv-release/bin/python scripts/distributions.py dist --repository "$(REPOSITORY)"
	@.venv-release/bin/twine check --strict dist/dolmen*

.PHONY: docs
docs: export COMMAND_REFERENCE := $(CURDIR)/build/commands.md
docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/.installed .venv-docs/.installed ## the site of docs/, into site/; broken links fail it: make docs SITE=https://...
	@$(DEV)/python scripts/command_reference.py "$$COMMAND_REFERENCE"
	@REPOSITORY="$(REPOSITORY)" SITE="$(SITE)" .venv-docs/bin/mkdocs build --clean
	@echo "$(CURDIR)/site/index.html"

.PHONY: clean
clean: ## remove environments, caches and what was built
	rm -rf .venv .venv-demo .venv-sam .venv-iceberg .venv-dbt .venv-peers .venv-lint .venv-release .venv-docs .venv-spark-* .aws-sam .local .demo build dist site .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis .import_linter_cache
	find shared functions tests bench examples layers \( -name __pycache__ -o -name '*.egg-info' \) -prune \
		-exec rm -rf {} + 2>/dev/null || true
