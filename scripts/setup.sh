#!/usr/bin/env bash
# Lists all missing tools, and how to install them. Then installs the Rust targets for coordinators: wasm32-wasip2, and
# wasm32-wasip1. Only the tests need wasm32-wasip1, for modules that the host wraps as components. Does nothing if
# everything is installed.
#
#   scripts/setup.sh            for the host and coordinators in Rust
#   scripts/setup.sh examples   also for coordinators in other languages
#   scripts/setup.sh mutants    also for `make mutants`: cargo-mutants
#   scripts/setup.sh tests      also for the tests, including cargo-nextest
set -euo pipefail

missing=()

# Checks for a command, and records how to install it if it is missing.
need() {
  command -v "$1" >/dev/null || missing+=("$1: $2")
}

# Checks that the installed version of Node is one that the JavaScript tools support.
is_right_node() {
  node -e 'const [major, minor] = process.versions.node.split(".").map(Number);
    process.exit(major > 22 || (major === 22 && minor >= 12) || (major === 20 && minor >= 19) ? 0 : 1)'
}

is_right_python() {
  python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

need cargo 'install Rust 1.95 or newer from https://rustup.rs'
need cc 'install a C compiler (Debian: apt-get install gcc libc6-dev)'
if [[ ${1-} == examples || ${1-} == tests ]]; then
  need node 'install Node.js 20.19, or 22.12 or newer, from https://nodejs.org'
  need npm 'install it with Node.js, from https://nodejs.org'
  need python3 'install Python 3.10 or newer (Debian: apt-get install python3-venv)'
  need apt-get "run this on Debian or a distribution based on it: some tools are Debian packages"
  if command -v node >/dev/null && ! is_right_node; then
    missing+=("node: the JavaScript tools do not support $(node --version): install 20.19, or 22.12 or newer, from https://nodejs.org")
  fi
  if command -v python3 >/dev/null && ! is_right_python; then
    missing+=("python3: 3.10 or newer with venv is needed (Debian: apt-get install python3-venv)")
  fi
fi
if [[ ${1-} == tests ]]; then
  need git 'install it (Debian: apt-get install git)'
  need curl 'install it (Debian: apt-get install curl)'
fi
if ((${#missing[@]} > 0)); then
  printf 'missing: %s\n' "${missing[@]}" >&2
  exit 1
fi

for target in wasm32-wasip2 wasm32-wasip1; do
  if [[ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]]; then
    continue
  fi
  if ! command -v rustup >/dev/null; then
    echo "the Rust toolchain has no target $target, and rustup, which can add it, is missing:" >&2
    echo "install your distribution's package for it, or Rust from https://rustup.rs" >&2
    exit 1
  fi
  rustup target add "$target"
done

# Installs cargo-nextest, which runs each test in its own process. A debug build takes 1 to 2 minutes.
nextest_version=0.9.143
if [[ ${1-} == tests ]] && ! cargo nextest --version >/dev/null 2>&1; then
  cargo install --locked --debug "cargo-nextest@$nextest_version" --root .cache/tools --target-dir .cache/tools/target
  rm -rf .cache/tools/target
fi

# Installs cargo-mutants, which breaks the elector for `make mutants`. A debug build takes 1 to 2 minutes.
mutants_version=27.1.0
if [[ ${1-} == mutants ]] && ! cargo mutants --version >/dev/null 2>&1; then
  cargo install --locked --debug "cargo-mutants@$mutants_version" --root .cache/tools --target-dir .cache/tools/target
  rm -rf .cache/tools/target
fi
