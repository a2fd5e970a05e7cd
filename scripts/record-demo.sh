#!/usr/bin/env bash
# Runs the demo and copies its output into the README, without repeated lines.
set -euo pipefail
cd "$(dirname "$0")/.."

recording=$(mktemp)
trap 'rm -f "$recording" README.md.new' EXIT
make --silent demo | tee "$recording"
awk -v recording="$recording" '
  /^<!-- demo: end/ { inside = 0 }
  !inside { print }
  /^<!-- demo: written/ {
    inside = 1
    print "```text"
    print "$ make demo"
    while ((getline line < recording) > 0) if (line !~ /\| beat ([2-9]|[0-9][0-9])|standby$/) print line
    print "```"
  }' README.md >README.md.new
mv README.md.new README.md
