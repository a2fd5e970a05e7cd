#!/usr/bin/env bash
# Checks a change before its tests run: formatting, lints, docs, the copies of the WIT contract, Markdown pages,
# dependencies between packages, and that the elector builds without an operating system.
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
  step 'Formatting' formatting
  step 'Lints' lints
  step 'Comments' python3 scripts/check_comments.py .
  step 'Docs' docs
  step 'Copies of the WIT contract' contract
  step 'Pages: duplicates and broken links' pages
  step 'Dependencies between the packages of the host' arrows
  step 'The elector without an operating system' no_std
  step 'Subsets of the features' features
  step 'Dependencies' scripts/deny.sh
}

# Runs a step under a header, and prints how long it took.
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
  # Check the packages that are built for guests.
  cargo clippy --locked --workspace --exclude 'baton' --exclude 'baton-[!s]*' --exclude 'baton-store' \
    --target wasm32-wasip2 -- -D warnings
}

docs() {
  RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --workspace --exclude baton-fuzz
}

# The store's features are optional. Checks the package with none of them, and with each one alone.
features() {
  local features
  for features in '' sqlite azure conformance; do
    cargo clippy --locked --quiet -p baton-store --no-default-features --features "$features" -- -D warnings
  done
}

# A package on crates.io must contain all of its files, so guest-sdk contains a copy of the contract.
contract() {
  local file
  while IFS= read -r -d '' file; do
    diff "$file" "guest-sdk/$file"
  done < <(find wit -type f -print0)
}

# Finds broken links, and headings, table rows and sentences that a merge has duplicated.
pages() {
  local page
  git ls-files -z '*.md' | xargs -0 python3 scripts/check_links.py
  scripts/monitoring.sh
  scripts/packaging.sh
  for page in *.md docs/*.md; do
    awk '(length > 50 || /^## /) && seen[$0]++ { print FILENAME ": duplicate line: " $0; twice = 1 } END { exit twice }' "$page"
  done
}

# Compares the dependencies between the host's packages with the list in ARCHITECTURE.md.
arrows() {
  cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
host = {"baton"} | {f"baton-{part}" for part in ("admin", "base", "election", "store", "runtime", "modules", "node")}
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
