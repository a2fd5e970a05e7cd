# Each target is one command, says first what is missing that it cannot bring, and sets up the rest.
# `make` alone says what there is.

CARGO ?= cargo
# Tools that were missing here and were built for the tests.
export PATH := $(CURDIR)/.cache/tools/bin:$(PATH)
TARGET := $(or $(CARGO_TARGET_DIR),target)
HEARTBEAT := $(TARGET)/wasm32-wasip2/release/heartbeat.wasm
GUESTS := $(CARGO) build --locked --release --target wasm32-wasip2

.PHONY: help demo build dist guests examples test tests-built search soak model mutants faults deaths fuzz \
	bench bench-peers docs lint lint-arm deny clean setup setup-examples setup-tests

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
	@scripts/deny.sh --always
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --workspace --exclude baton-fuzz --all-features
	$(CARGO) package --locked --no-verify --allow-dirty --quiet -p baton-election -p baton-sdk -p baton-store
	@scripts/dist.sh $(if $(CHECK),--check)

guests: setup ## Build the coordinators: target/wasm32-wasip2/release/*.wasm
	$(GUESTS) --package cron --package heartbeat --package scheduler

examples: setup-examples ## Build the scheduler in five languages: target/examples/*.wasm
	@scripts/examples.sh

# Tests need these servers and tools, each in a folder of its own in .cache.
TEST_TOOLS := azurite registry minisign browser

test: tests-built ## Run every test, those against Azurite and a registry included (each scenario on both stores: STORES=all)
	@for tool in $(TEST_TOOLS); do host/tests/$$tool.sh install || exit 1; done
	@scripts/test.py

tests-built: setup-tests examples
	$(CARGO) nextest run --locked --workspace --no-run

MINUTES ?= 2

search: soak model mutants faults deaths fuzz ## Run all that searches, for MINUTES=2 each: before an issue is resolved

soak: setup ## Run the simulation of the elector on fresh seeds for MINUTES=2 (begin again at one: FIRST=…)
	BATON_SIM_MINUTES=$(MINUTES) $(if $(FIRST),BATON_SIM_FIRST=$(FIRST)) \
	$(CARGO) test --locked --workspace --test simulation -- --nocapture every_promise

model: setup ## Try every order of events on the elector for MINUTES=2
	BATON_MODEL_SECONDS=$$(($(MINUTES) * 60)) $(CARGO) test --locked --workspace --test model -- --nocapture

mutants: setup ## Break the elector's rules one at a time: simulation and model must notice each
	$(CARGO) test --locked --workspace --test mutants --test modelled -- --include-ignored --nocapture

faults: setup-tests ## Stop and kill hosts, break leases, delete records for MINUTES=2, and judge the effects (again: SEED=…)
	host/tests/azurite.sh install
	FAULTS_MINUTES=$(MINUTES) FAULTS_SEED=$(SEED) FAULTS_STATE=$(STATE) FAULTS_ONLY='$(ONLY)' FAULTS_NODES=$(NODES) FAULTS_OLD='$(OLD)' $(CARGO) test --locked --workspace --test faults -- --nocapture on_

# A debug build gets through some 90 in a minute.
COUNT ?= $(shell expr $(MINUTES) '*' 80)

deaths: setup-tests ## Kill a leader's host and runner at any point of a term, for MINUTES=2 or COUNT=1000 times, and judge the effects
	DEATHS=$(COUNT) DEATHS_SEED=$(SEED) $(CARGO) test --locked --workspace --test faults -- --nocapture after_a_death

fuzz: setup ## Fuzz everything that reads foreign bytes for MINUTES=2 in all (only some of it: READERS=…)
	scripts/fuzz.sh $(MINUTES) $(READERS)

bench: examples ## Measure what the README promises, each number beside its yardstick
	host/tests/azurite.sh install
	$(CARGO) bench --locked --workspace --bench report

bench-peers: setup build ## Measure etcd and ZooKeeper beside it, in a quarter of an hour (only some: ONLY=etcd)
	@python3 scripts/bench-peers $(TARGET)/release/baton $(ONLY)

lint: setup ## Check formatting, lints, docs, the contract's copies and, if they have changed, the dependencies
	scripts/lint.sh

deny: ## Check the dependencies' licenses, bans, sources and advisories
	@scripts/deny.sh --always

lint-arm: setup ## Check the lints of the host for 64-bit ARM, and run there what can be emulated
	@scripts/lint-arm.sh --run

docs: ## Build the pages as a book with a search: target/docs/index.html
	@scripts/docs.sh

clean: ## Remove what was built and fetched
	find . -name .git -prune -o -name target -type d -prune -exec rm -rf {} +
	rm -rf .cache

setup:
	@scripts/setup.sh

setup-examples setup-tests: setup-%:
	@scripts/setup.sh $*
