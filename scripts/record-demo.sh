#!/usr/bin/env bash
# Runs the demo and copies the summary of its output into the README.
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
    while ((getline line < recording) > 0) if (seen = seen || line == "What was seen") print line
    print "```"
  }' README.md >README.md.new
mv README.md.new README.md
