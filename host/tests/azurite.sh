#!/usr/bin/env bash
# Brings Azurite, Azure's emulator, for the tests: `azurite.sh install` leaves it in .cache, does nothing
# where it is present, and prints the path of the blob service's program.
set -euo pipefail

version=3.35.0
cache=$(cd "$(dirname "$0")/../.." && pwd)/.cache/azurite-$version
program=$cache/node_modules/.bin/azurite-blob

if [[ ${1:-} != install ]]; then
  echo "usage: $0 install" >&2
  exit 2
fi
if ! command -v npm >/dev/null; then
  echo 'npm was not found: install Node 20 or newer, the tests of the Azure store run its emulator' >&2
  exit 1
fi
mkdir -p "$cache"
# Test programs may ask at the same time.
exec 9>"$cache/lock"
flock 9
if [[ ! -e $cache/complete ]]; then
  npm install --prefix "$cache" --no-audit --no-fund --loglevel=error "azurite@$version" >&2
  touch "$cache/complete"
fi
echo "$program"
