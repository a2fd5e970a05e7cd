# Each target first lists the missing tools that it cannot install, and installs all others. Run `make` without a target
# to list the targets.

CARGO ?= cargo
# Find the tools that scripts/setup.sh built because they were missing.
export PATH := $(CURDIR)/.cache/tools/bin:$(PATH)
TARGET := $(or $(CARGO_TARGET_DIR),target)
HEARTBEAT := $(TARGET)/wasm32-wasip2/release/heartbeat.wasm
GUESTS := $(CARGO) build --locked --release --target wasm32-wasip2

.PHONY: help demo build dist guests examples test tests-built search soak model mutants faults deaths fuzz \
	bench bench-peers docs lint lint-arm deny clean setup setup-examples setup-mutants setup-tests

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' $(MAKEFILE_LIST) | expand -t 20

demo: setup ## Show three nodes and one leader: a crash, a takeover, a hand-off (under 30 s once built)
	$(GUESTS) --package heartbeat
	# Build the whole workspace with this feature, so that the tests can use the same builds of the shared dependencies.
	$(CARGO) build --locked --workspace --features baton-store/conformance --bin baton --bin demo
	@$(TARGET)/debug/demo $(TARGET)/debug/baton $(HEARTBEAT)

build: ## Build the host: target/release/baton
	$(CARGO) build --locked --release --package baton --bin baton

dist: setup ## Build a release in target/dist, signed with the key in DIST_KEY, if any (compare two builds: CHECK=1)
	@scripts/deny.sh --always
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --workspace --exclude baton-fuzz --all-features
	$(CARGO) package --locked --no-verify --allow-dirty --quiet -p baton-election -p baton-sdk -p baton-store
	@scripts/dist.sh $(if $(CHECK),--check)

guests: setup ## Build the coordinators: target/wasm32-wasip2/release/*.wasm
	$(GUESTS) --package cron --package heartbeat --package scheduler

examples: setup-examples ## Build the scheduler in five languages: target/examples/*.wasm
	@scripts/examples.sh

# Servers and tools that the tests need, each in its own folder in .cache.
TEST_TOOLS := azurite registry minisign browser

test: tests-built ## Run all tests, including those against Azurite and a registry (each scenario on both stores: STORES=all)
	@for tool in $(TEST_TOOLS); do host/tests/$$tool.sh install || exit 1; done
	@scripts/test.py

tests-built: setup-tests examples
	$(CARGO) nextest run --locked --workspace --no-run

MINUTES ?= 2

search: soak model mutants faults deaths fuzz ## Run all randomized searches for faults, for MINUTES=2 each: before an issue is closed

soak: setup ## Simulate the elector on new seeds for MINUTES=2 (start at a seed: FIRST=…)
	BATON_SIM_MINUTES=$(MINUTES) $(if $(FIRST),BATON_SIM_FIRST=$(FIRST)) \
	$(CARGO) test --locked --workspace --test simulation -- --nocapture every_promise

model: setup ## Try all orders of events on the elector for MINUTES=2
	BATON_MODEL_SECONDS=$$(($(MINUTES) * 60)) $(CARGO) test --locked --workspace --test model -- --nocapture

mutants: setup-mutants ## Break the elector at random places for MINUTES=2: its tests must detect each change (repeat a run: SHARD=…)
	@SHARD=$(SHARD) scripts/mutants.sh $(MINUTES)

faults: setup-tests ## Stop and kill hosts, break leases and delete records for MINUTES=2, and check the effects (repeat a run: SEED=…)
	host/tests/azurite.sh install
	FAULTS_MINUTES=$(MINUTES) FAULTS_SEED=$(SEED) FAULTS_STATE=$(STATE) FAULTS_ONLY='$(ONLY)' FAULTS_NODES=$(NODES) FAULTS_OLD='$(OLD)' $(CARGO) test --locked --workspace --test faults -- --nocapture on_

# Kill 80 times per minute: a debug build manages about 90.
COUNT ?= $(shell expr $(MINUTES) '*' 80)

deaths: setup-tests ## Kill a leader's host and runner at any point of a term, for MINUTES=2 or COUNT=1000 times, and check the effects
	DEATHS=$(COUNT) DEATHS_SEED=$(SEED) $(CARGO) test --locked --workspace --test faults -- --nocapture effects_of_a_term_stop

fuzz: setup ## Fuzz all parsers of untrusted bytes for MINUTES=2 in total (only some parsers: READERS=…)
	scripts/fuzz.sh $(MINUTES) $(READERS)

bench: examples ## Measure the numbers that the README promises, and compare each with its limit
	host/tests/azurite.sh install
	$(CARGO) bench --locked --workspace --bench report

bench-peers: setup build ## Compare Baton with etcd and ZooKeeper, in 15 minutes (only some systems: ONLY=etcd)
	@python3 scripts/bench-peers $(TARGET)/release/baton $(ONLY)

lint: setup ## Check formatting, lints, docs, the copies of the WIT contract, and changed dependencies
	scripts/lint.sh

deny: ## Check the dependencies' licenses, bans, sources and advisories
	@scripts/deny.sh --always

lint-arm: setup ## Check the host's lints for 64-bit ARM, and run the tests that can be emulated
	@scripts/lint-arm.sh --run

docs: ## Build the docs as a searchable book: target/docs/index.html
	@scripts/docs.sh

clean: ## Remove build results and downloads
	find . -name .git -prune -o -name target -type d -prune -exec rm -rf {} +
	rm -rf .cache

setup:
	@scripts/setup.sh

setup-examples setup-mutants setup-tests: setup-%:
	@scripts/setup.sh $*
