#!/usr/bin/env bash
# Checks the dependencies against deny.toml: licenses, bans, sources and advisories.
#
#   scripts/deny.sh            checks if Cargo.lock or deny.toml has changed since the last check, which
#                              scripts/deny.sha256 records; otherwise, does nothing
#   scripts/deny.sh --always   always checks, and records the check
#
# The first run builds cargo-deny, which takes a minute or two.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
tools=$PWD/.cache/tools
record=scripts/deny.sha256

if [[ ${1-} != --always ]] && sha256sum --check --status "$record"; then
  echo "unchanged since the check recorded in $record; NOT CHECKED: advisories (\`make deny\` checks them)"
  exit 0
fi
if [[ "$("$tools/bin/cargo-deny" --version 2>/dev/null || true)" != "cargo-deny $version" ]]; then
  cargo install --locked --debug "cargo-deny@$version" --root "$tools" --target-dir "$tools/target"
  rm -rf "$tools/target"
fi
deny() {
  "$tools/bin/cargo-deny" --locked --config deny.toml check "$@"
}
deny licenses bans sources
if timeout 120 "$tools/bin/cargo-deny" fetch db; then
  deny advisories
else
  echo 'NOT CHECKED: advisories, because the RustSec database could not be fetched (see above)'
fi
sha256sum Cargo.lock deny.toml >"$record"
echo "if $record has changed, commit it"
