#!/usr/bin/env bash
# Checks what is in packaging, each part with what can be had here, and says of the others that they are not checked.
set -euo pipefail
cd "$(dirname "$0")/.."

unit=packaging/systemd/baton.service
if command -v systemd-analyze >/dev/null; then
  checked=$(mktemp -d)
  trap 'rm -rf "$checked"' EXIT
  # The program need not be installed for its unit to be right.
  sed 's#^ExecStart=/usr/bin/baton #ExecStart=/bin/sh #' "$unit" >"$checked/baton.service"
  complaints=$(systemd-analyze verify "$checked/baton.service" 2>&1 | grep -F 'baton.service' || true)
  if [[ -n $complaints ]]; then
    echo "packaging: $complaints" >&2
    exit 1
  fi
else
  echo "NOT CHECKED: $unit, since systemd-analyze is missing (Debian: apt-get install systemd)"
fi
