#!/usr/bin/env bash
# What is there for no machine but the other kind: the host for 64-bit ARM, cross-compiled. Its lints; and where qemu's user
# mode is (Debian: qemu-user), the tests that need nothing of the kernel but its calls: those of the elector and the
# embedded store. Instances cannot be emulated so: their processes are confined by seccomp filters and Landlock, which
# qemu's user mode does not have, and their code is made for the processor.
#
#   scripts/lint-arm.sh          the lints
#   scripts/lint-arm.sh --run    and what can be run
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TARGET=aarch64-unknown-linux-gnu
readonly HOST_PACKAGES=(-p baton -p baton-election -p baton-modules -p baton-runtime -p baton-store)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"

if [[ ! -d "$(rustc --print sysroot)/lib/rustlib/$TARGET/lib" ]]; then
  rustup target add "$TARGET"
fi
if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
  echo 'aarch64-linux-gnu-gcc: install it (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)' >&2
  exit 1
fi
cargo clippy --locked --target "$TARGET" "${HOST_PACKAGES[@]}" -- -D warnings
if [[ ${1-} == --run ]]; then
  if ! command -v qemu-aarch64 >/dev/null; then
    echo 'qemu-aarch64: install it (Debian: apt-get install qemu-user)' >&2
    exit 1
  fi
  cargo test --locked --target "$TARGET" -p baton-election --test rules
  # One test starts itself again and again, which needs qemu to be known to the kernel.
  cargo test --locked --target "$TARGET" -p baton-store --lib --test conformance -- sqlite --skip of_many_processes
  cargo run --locked --target "$TARGET" -p baton --bin baton -- --version
fi
