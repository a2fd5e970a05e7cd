#!/usr/bin/env bash
# Builds examples/scheduler in the given languages, or in all languages by default: target/examples/*.wasm. The script
# needs Rust, Node with npm, and Python 3. It installs all other tools in .cache. Their versions are pinned in this
# script and next to the sources. A component that is newer than its sources is not built again.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD
sources=examples/scheduler
wit=$sources/wit
cache=$root/.cache/examples
out=$root/${CARGO_TARGET_DIR:-target}/examples
[[ ${CARGO_TARGET_DIR:-} == /* ]] && out=$CARGO_TARGET_DIR/examples
wit_bindgen_version=0.61.1

main() {
  local language
  if [[ $# == 0 ]]; then
    set -- rust js python c go
  fi
  mkdir -p "$cache" "$out"
  for language in "$@"; do
    if ! declare -F "build_$language" >/dev/null; then
      echo "no example in $language; the languages are rust, js, python, c and go" >&2
      exit 2
    fi
    build "$language"
  done
}

# Builds the component in one language, unless it is up to date. For Rust, cargo decides whether it is.
build() {
  local language=$1 component=$out/scheduler-$1.wasm start
  if [[ $language != rust && -f $component ]] &&
    [[ -z $(find -L "$sources/$language" "$wit" scripts/examples.sh -newer "$component" -print -quit) ]]; then
    return
  fi
  "tools_$language"
  start=$(date +%s%N)
  "build_$language" "$component.new"
  mv "$component.new" "$component"
  printf '%s: %d KB, built in %d.%d s\n' "${component#"$root/"}" $(($(stat -c %s "$component") / 1000)) \
    $((($(date +%s%N) - start) / 1000000000)) $((($(date +%s%N) - start) / 100000000 % 10))
}

tools_rust() {
  scripts/setup.sh
}

build_rust() {
  cargo build --locked --quiet --release --target wasm32-wasip2 --package scheduler
  cp "${CARGO_TARGET_DIR:-target}/wasm32-wasip2/release/scheduler.wasm" "$1"
}

tools_js() {
  node_tools
}

# Disables StarlingMonkey's fetch event, which only a server needs. The scheduler is a client: it calls `fetch`.
build_js() {
  "$cache/node/node_modules/.bin/componentize-js" "$sources/js/scheduler.js" \
    --wit "$wit" --world-name scheduler --disable fetch-event --out "$1"
}

tools_python() {
  python_tools python
}

# Builds from a copy of the sources, because Python writes bytecode next to them.
build_python() {
  local work=$cache/python/work
  rm -rf "$work"
  mkdir "$work"
  cp "$sources"/python/*.py "$work"
  "$cache/python/bin/componentize-py" --quiet --wit-path "$wit" --world scheduler \
    componentize --python-path "$work" scheduler --output "$1"
}

tools_c() {
  node_tools
  python_tools c
  rust_tool wit-bindgen-cli wit-bindgen "$wit_bindgen_version" --no-default-features --features c
}

build_c() {
  local work=$cache/c/work
  mkdir -p "$work"
  if ! "$root/.cache/tools/bin/wit-bindgen" c "$wit" --world scheduler --rename-world bindings --out-dir "$work" \
    &>"$work/wit-bindgen.log"; then
    cat "$work/wit-bindgen.log" >&2
    return 1
  fi
  ZIG_GLOBAL_CACHE_DIR=$cache/c/zig ZIG_LOCAL_CACHE_DIR=$cache/c/zig "$cache/c/bin/python-zig" cc \
    --target=wasm32-wasi -mexec-model=reactor -O2 -Wall -Wextra -Werror -I"$work" -Wl,--strip-debug \
    "$sources/c/scheduler.c" "$work/bindings.c" "$work/bindings_component_type.o" -o "$work/core.wasm"
  "$cache/node/node_modules/.bin/jco" new "$work/core.wasm" --wasi-reactor --output "$1" >/dev/null
}

tools_go() {
  node_tools
  python_tools go
}

build_go() {
  local work=$cache/go/work go=$cache/go/bin/go
  "$sources/go/overlay.sh" "$work" "$go"
  GOCACHE=$cache/go/cache GOPROXY=off GOTOOLCHAIN=local GOOS=wasip1 GOARCH=wasm "$go" build -C "$sources/go" \
    -buildmode=c-shared -overlay="$work/overlay.json" -trimpath -ldflags='-s -w' -o "$work/core.wasm" .
  (cd "$cache/node" && node "$root/$sources/go/component.mjs" "$work/core.wasm" "$root/$wit" "$1")
}

# Installs componentize-js, and jco, which turns core modules into components as `wasm-tools component new` does.
node_tools() {
  need npm 'Node with npm from https://nodejs.org'
  if ! cmp -s "$sources/js/package-lock.json" "$cache/node/installed"; then
    rm -rf "$cache/node"
    mkdir -p "$cache/node"
    cp "$sources/js/package.json" "$sources/js/package-lock.json" "$cache/node"
    # Do not use `npm ci`: it fails if packages for other systems are missing from the registry.
    npm install --prefix "$cache/node" --no-save --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
    cp "$sources/js/package-lock.json" "$cache/node/installed"
  fi
}

# Creates a virtual environment for a language whose toolchain is a Python package.
python_tools() {
  local requirements=$sources/$1/requirements.txt environment=$cache/$1
  need python3 'Python 3.10 or newer, with venv'
  if ! cmp -s "$requirements" "$environment/requirements.txt"; then
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps -r "$requirements"
    cp "$requirements" "$environment/requirements.txt"
  fi
}

# rust_tool PACKAGE COMMAND VERSION FLAGS...: installs a tool. Uses a debug build, because building the tool takes
# longer than running it.
rust_tool() {
  local tools=$root/.cache/tools
  if [[ "$("$tools/bin/$2" --version 2>/dev/null || true)" != *" $3" ]]; then
    cargo install --locked --quiet --debug "$1@$3" --root "$tools" --target-dir "$tools/target" "${@:4}"
    rm -rf "$tools/target"
  fi
}

need() {
  if ! command -v "$1" >/dev/null; then
    echo "$1 is missing: install $2" >&2
    exit 1
  fi
}

main "$@"
