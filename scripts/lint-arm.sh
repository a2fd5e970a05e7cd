#!/usr/bin/env bash
# Checks the host's lints for 64-bit ARM. With --run, also runs the tests of the elector and the embedded store in
# qemu's user mode (Debian: qemu-user). Instances cannot run there, because qemu's user mode does not support seccomp
# filters and Landlock, which confine the instances' processes.
#
#   scripts/lint-arm.sh          checks the lints
#   scripts/lint-arm.sh --run    also runs the tests that can be emulated
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TARGET=aarch64-unknown-linux-gnu
readonly HOST_PACKAGES=(-p baton -p baton-admin -p baton-base -p baton-election -p baton-modules -p baton-node -p baton-runtime -p baton-store)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"

if [[ ! -d "$(rustc --print sysroot)/lib/rustlib/$TARGET/lib" ]]; then
  rustup target add "$TARGET"
fi
if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
  echo 'aarch64-linux-gnu-gcc is missing: install it (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)' >&2
  exit 1
fi
cargo clippy --locked --target "$TARGET" "${HOST_PACKAGES[@]}" -- -D warnings
if [[ ${1-} == --run ]]; then
  if ! command -v qemu-aarch64 >/dev/null; then
    echo 'qemu-aarch64 is missing: install it (Debian: apt-get install qemu-user)' >&2
    exit 1
  fi
  cargo test --locked --target "$TARGET" -p baton-election --test rules
  # Skip a test that starts its own program again. That works only if qemu is registered with the kernel (binfmt_misc).
  cargo test --locked --target "$TARGET" -p baton-store --lib --test conformance -- sqlite --skip of_many_processes
  cargo run --locked --target "$TARGET" -p baton --bin baton -- --version
fi
