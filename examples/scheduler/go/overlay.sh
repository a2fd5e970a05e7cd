#!/usr/bin/env bash
# Mends Go's runtime for components: overlay.sh FOLDER [GO] writes what `go build -overlay=FOLDER/overlay.json` takes.
#
# Go takes for granted that all memory is its own. In a component, WASI's adapter takes some too, when it is first
# called, and Go would put its heap over it: it traps as soon as it grows. Asked for the time before the runtime
# settles in, the adapter takes its share before, once and for all, and the heap begins behind it.
set -euo pipefail

folder=$1
go=${2:-go}
mkdir -p "$folder"
runtime=$("$go" env GOROOT)/src/runtime/os_wasm.go
sed 's/^\tblocMax = .*/\tnanotime1()\n\tbloc = uintptr(currentMemory()) * physPageSize\n\tblocMax = bloc/' \
  "$runtime" >"$folder/os_wasm.go"
if ! grep -q 'blocMax = bloc$' "$folder/os_wasm.go"; then
  echo "overlay.sh: $("$go" version) is not as Go 1.27 is: see whether it needs this, and where" >&2
  exit 1
fi
printf '{"Replace":{"%s":"%s"}}\n' "$runtime" "$(cd "$folder" && pwd)/os_wasm.go" >"$folder/overlay.json"
