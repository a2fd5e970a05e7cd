#!/usr/bin/env bash
# Runs the demo and puts what it printed into the README, so that the recording there is a real one.
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
    while ((getline line < recording) > 0) print line
    print "```"
  }' README.md >README.md.new
mv README.md.new README.md
