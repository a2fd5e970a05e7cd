# Each target is one command and sets up what it needs: Rust with rustup, and for `test` Node with npm.
# `make` alone says what there is.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
GUESTS := $(or $(CARGO_TARGET_DIR),examples/target)/wasm32-wasip2/release
HEARTBEAT := $(GUESTS)/heartbeat.wasm

.PHONY: help demo build examples test bench lint clean setup

help: ## Say what there is
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' $(MAKEFILE_LIST) | expand -t 18

demo: examples ## Three nodes, one leader: a crash, a takeover, a hand-off (under 30 s once built)
	$(CARGO) build --locked --release --package baton --bin baton --example demo
	@$(TARGET)/release/examples/demo $(TARGET)/release/baton $(HEARTBEAT)

build: ## Build the host: target/release/baton
	$(CARGO) build --locked --release --package baton --bin baton

examples: setup ## Build the example coordinators: examples/target/wasm32-wasip2/release/*.wasm
	$(CARGO) build --locked --release --target wasm32-wasip2 --manifest-path examples/Cargo.toml

test: setup ## Run every test there is, those against Azurite included
	host/tests/azurite.sh install
	$(CARGO) test --locked --workspace
	$(CARGO) test --locked --manifest-path guest-sdk/Cargo.toml
	$(CARGO) test --locked --manifest-path examples/Cargo.toml

bench: setup ## Measure what the README promises, each number beside its yardstick
	$(CARGO) bench --locked --package baton --bench report

lint: setup ## Check formatting, lints, docs, the contract's copies and the dependencies
	scripts/lint.sh

clean: ## Remove what was built and fetched
	find . -name .git -prune -o -name target -type d -prune -exec rm -rf {} +
	rm -rf .cache

setup:
	@scripts/setup.sh
