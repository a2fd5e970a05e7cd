#!/usr/bin/env bash
# Patches Go's runtime for components. `overlay.sh FOLDER [GO]` writes the files that
# `go build -overlay=FOLDER/overlay.json` reads.
#
# Go's runtime assumes that it owns all memory. In a component, the WASI adapter also allocates memory when it is first
# called. Go would place its heap over that memory, and trap as soon as the heap grows. So the patch calls the adapter
# once, to read the time, before the runtime initializes its heap. The heap then starts after the adapter's memory.
set -euo pipefail

folder=$1
go=${2:-go}
mkdir -p "$folder"
runtime=$("$go" env GOROOT)/src/runtime/os_wasm.go
sed 's/^\tblocMax = .*/\tnanotime1()\n\tbloc = uintptr(currentMemory()) * physPageSize\n\tblocMax = bloc/' \
  "$runtime" >"$folder/os_wasm.go"
if ! grep -q 'blocMax = bloc$' "$folder/os_wasm.go"; then
  echo "overlay.sh: $("$go" version) differs from Go 1.27: check whether it still needs this patch, and where" >&2
  exit 1
fi
printf '{"Replace":{"%s":"%s"}}\n' "$runtime" "$(cd "$folder" && pwd)/os_wasm.go" >"$folder/overlay.json"
