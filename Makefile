# Each target is one command, says first what is missing that it cannot bring, and sets up the rest.
# `make` alone says what there is.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
HEARTBEAT := $(TARGET)/wasm32-wasip2/release/heartbeat.wasm
GUESTS := $(CARGO) build --locked --release --target wasm32-wasip2

.PHONY: help demo build dist guests examples test test-blackbox test-others tests-built faults deaths soak model fuzz bench bench-peers docs lint lint-arm \
	clean setup setup-examples setup-tests

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(MAKEFILE_LIST) | expand -t 20

demo: setup ## Three nodes, one leader: a crash, a takeover, a hand-off (under 30 s once built)
	$(GUESTS) --package heartbeat
	# Of all packages and with this feature, so that what they share is what the tests build, too.
	$(CARGO) build --locked --workspace --features baton-store/conformance --bin baton --bin demo
	@$(TARGET)/debug/demo $(TARGET)/debug/baton $(HEARTBEAT)

build: ## Build the host: target/release/baton
	$(CARGO) build --locked --release --package baton --bin baton

dist: setup ## Make what is released, signed by the key in DIST_KEY if there is one: target/dist (compare two: CHECK=1)
	@scripts/dist.sh $(if $(CHECK),--check)

guests: setup ## Build the coordinators: target/wasm32-wasip2/release/*.wasm
	$(GUESTS) --package cron --package heartbeat --package scheduler

examples: setup-examples ## Build the scheduler in five languages: target/examples/*.wasm
	@scripts/examples.sh

test: tests-built ## Run every test there is, those against Azurite and a registry included
	@rm -f $(TARGET)/tmp/skipped
	host/tests/azurite.sh install
	host/tests/registry.sh install
	host/tests/minisign.sh install
	host/tests/browser.sh install
	@$(MAKE) --no-print-directory --jobs 2 test-blackbox test-others
	@! [ -s $(TARGET)/tmp/skipped ] || cat $(TARGET)/tmp/skipped

# Most tests wait for processes, so more of them run at once than there are processors: as many as have a share. No other
# target of tests has a name that begins with a b.
test-blackbox test-others: export RUST_TEST_THREADS := $(shell expr $$(nproc) '*' 6)
OTHERS := --lib --bins --examples --test '[!b]*'

test-blackbox:
	$(CARGO) test --locked --workspace --test blackbox

test-others:
	$(CARGO) test --locked --workspace --doc
	$(CARGO) test --locked --workspace --no-fail-fast $(OTHERS)

tests-built: setup-tests examples
	$(CARGO) test --locked --workspace --no-run $(OTHERS) --test blackbox

MINUTES ?= 2

faults: setup-tests ## Stop and kill hosts, break leases, delete records for MINUTES=2, and judge the effects (again: SEED=…)
	host/tests/azurite.sh install
	FAULTS_MINUTES=$(MINUTES) FAULTS_SEED=$(SEED) FAULTS_STATE=$(STATE) FAULTS_ONLY='$(ONLY)' FAULTS_NODES=$(NODES) FAULTS_OLD='$(OLD)' $(CARGO) test --locked --workspace --test faults -- --nocapture on_

COUNT ?= 1000

deaths: setup-tests ## Kill a leader's host and runner at any point of a term, COUNT=1000 times, and judge the effects
	DEATHS=$(COUNT) DEATHS_SEED=$(SEED) $(CARGO) test --locked --workspace --test faults -- --nocapture after_a_death

soak: setup ## Run the simulation of the elector on fresh seeds for MINUTES=2 (begin again at one: FIRST=…)
	BATON_SIM_MINUTES=$(MINUTES) $(if $(FIRST),BATON_SIM_FIRST=$(FIRST)) \
	$(CARGO) test --locked --workspace --test simulation -- --nocapture every_promise

SECONDS ?= 600

model: setup ## Try every order of events on the elector, for SECONDS=600, and find what readers once found
	BATON_MODEL_SECONDS=$(SECONDS) $(CARGO) test --locked --workspace --test model --test modelled -- --nocapture

bench: examples ## Measure what the README promises, each number beside its yardstick
	host/tests/azurite.sh install
	$(CARGO) bench --locked --workspace --bench report

bench-peers: setup build ## Measure etcd and ZooKeeper beside it, in a quarter of an hour (only some: ONLY=etcd)
	@python3 scripts/bench-peers $(TARGET)/release/baton $(ONLY)

lint: setup ## Check formatting, lints, docs, the contract's copies and the dependencies
	scripts/lint.sh

lint-arm: setup ## Check the lints of the host for 64-bit ARM, and run there what can be emulated
	@scripts/lint-arm.sh --run

docs: ## Build the pages as a book with a search: target/docs/index.html
	@scripts/docs.sh

fuzz: setup ## Feed everything that reads others' bytes for MINUTES=2 each, two at a time (some alone: READERS=…)
	scripts/fuzz.sh $(MINUTES) $(READERS)

clean: ## Remove what was built and fetched
	find . -name .git -prune -o -name target -type d -prune -exec rm -rf {} +
	rm -rf .cache

setup:
	@scripts/setup.sh

setup-examples setup-tests: setup-%:
	@scripts/setup.sh $*
