#!/usr/bin/env bash
# Brings what building coordinators needs: Rust's target wasm32-wasip2, and wasm32-wasip1 for the tests of
# modules that are wrapped. Does nothing where they are present.
set -euo pipefail

if ! command -v cargo >/dev/null; then
  echo 'cargo was not found: install Rust 1.95 or newer from https://rustup.rs' >&2
  exit 1
fi
for target in wasm32-wasip2 wasm32-wasip1; do
  if [[ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]]; then
    continue
  fi
  if ! command -v rustup >/dev/null; then
    echo "this Rust toolchain has no target $target, and rustup, which adds it, was not found:" >&2
    echo "install your distribution's package for it, or Rust from https://rustup.rs" >&2
    exit 1
  fi
  rustup target add "$target"
done
