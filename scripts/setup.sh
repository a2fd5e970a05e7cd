#!/usr/bin/env bash
# Says at once what is missing of what the README asks for, and how to get it; then brings Rust's targets for
# coordinators: wasm32-wasip2, and wasm32-wasip1 for the tests of modules that are wrapped. Does nothing where all of it
# is there.
#
#   scripts/setup.sh            what building the host and Rust's coordinators needs
#   scripts/setup.sh examples   and what those in other languages need
#   scripts/setup.sh tests      and what the tests need, cargo-nextest among it
set -euo pipefail

missing=()

# Asks for a command, and says how to get it.
need() {
  command -v "$1" >/dev/null || missing+=("$1: $2")
}

# Node's versions for which the tools of JavaScript are made.
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
  need apt-get "run this on Debian or one of its descendants: some tools are Debian's"
  if command -v node >/dev/null && ! is_right_node; then
    missing+=("node: $(node --version) is not for the tools of JavaScript: install 20.19, or 22.12 or newer, from https://nodejs.org")
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
    echo "this Rust toolchain has no target $target, and rustup, which adds it, was not found:" >&2
    echo "install your distribution's package for it, or Rust from https://rustup.rs" >&2
    exit 1
  fi
  rustup target add "$target"
done

# Runs the tests, each in a process of its own. Unoptimized, it builds in a minute or two.
nextest_version=0.9.143
if [[ ${1-} == tests ]] && ! cargo nextest --version >/dev/null 2>&1; then
  cargo install --locked --debug "cargo-nextest@$nextest_version" --root .cache/tools --target-dir .cache/tools/target
  rm -rf .cache/tools/target
fi
