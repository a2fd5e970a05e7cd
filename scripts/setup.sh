#!/usr/bin/env bash
# Brings what building coordinators needs: Rust's target wasm32-wasip2. Does nothing where it is present.
set -euo pipefail

if ! command -v cargo >/dev/null; then
  echo 'cargo was not found: install Rust 1.95 or newer from https://rustup.rs' >&2
  exit 1
fi
if [[ -d "$(rustc --print sysroot)/lib/rustlib/wasm32-wasip2/lib" ]]; then
  exit 0
fi
if ! command -v rustup >/dev/null; then
  echo "this Rust toolchain has no target wasm32-wasip2, and rustup, which adds it, was not found:" >&2
  echo "install your distribution's package for it, or Rust from https://rustup.rs" >&2
  exit 1
fi
rustup target add wasm32-wasip2
