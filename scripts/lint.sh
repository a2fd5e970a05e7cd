#!/usr/bin/env bash
# Checks a change before its tests run: formatting, lints, docs, the contract's copies, pages, the order of packages, and
# that the elector builds without an operating system.
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
  step 'Formatting' formatting
  step 'Lints' lints
  step 'Docs' docs
  step 'The contract is the same everywhere' contract
  step 'The pages say things once, and their links lead somewhere' pages
  step 'The packages of the host depend one way' arrows
  step 'The elector needs no operating system' no_std
  step 'A part of the features is enough' features
  step 'Dependencies' scripts/deny.sh
}

# Runs a step under a header and says how long it took.
step() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@"
  printf '   %s: %d s\n' "$name" $((SECONDS - start))
}

formatting() {
  cargo fmt --all --check
}

lints() {
  cargo clippy --locked --workspace --all-targets -- -D warnings
  # What guests are built from.
  cargo clippy --locked --workspace --exclude 'baton' --exclude 'baton-[!s]*' --exclude 'baton-store' \
    --target wasm32-wasip2 -- -D warnings
}

docs() {
  RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --workspace --exclude baton-fuzz
}

# The store's backends can be left out, and so can what sends telemetry.
features() {
  local features
  for features in '' sqlite azure conformance; do
    cargo clippy --locked --quiet -p baton-store --no-default-features --features "$features" -- -D warnings
  done
  cargo clippy --locked --quiet -p baton --no-default-features -- -D warnings
}

# A package on crates.io carries its files with it, so a copy of the contract lives beside the SDK.
contract() {
  local file
  while IFS= read -r -d '' file; do
    diff "$file" "guest-sdk/$file"
  done < <(find wit -type f -print0)
}

# What a merge has doubled: a section, a row of a table, a sentence; and links that lead nowhere.
pages() {
  local page
  git ls-files -z '*.md' | xargs -0 python3 scripts/check_links.py
  scripts/monitoring.sh
  scripts/packaging.sh
  for page in *.md docs/*.md; do
    awk '(length > 50 || /^## /) && seen[$0]++ { print FILENAME ": twice: " $0; twice = 1 } END { exit twice }' "$page"
  done
}

# What each package of the host uses of the others: as ARCHITECTURE.md lists it.
arrows() {
  cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
host = {"baton"} | {f"baton-{part}" for part in ("election", "store", "runtime", "modules")}
for package in sorted(packages, key=lambda package: package["name"]):
    if package["name"] in host:
        used = {uses["name"] for uses in package["dependencies"] if uses["kind"] != "dev"}
        print(" ".join([package["name"] + ":", *sorted(name for name in used if name.startswith("baton"))]))
' | diff <(sed -n '/^baton: /,/^```$/p' ARCHITECTURE.md | grep -v '^```$') -
}

no_std() {
  local target=x86_64-unknown-none
  if [[ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]]; then
    rustup target add "$target"
  fi
  cargo build --locked --package baton-election --target "$target"
}

main
