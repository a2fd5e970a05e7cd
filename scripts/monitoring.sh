#!/usr/bin/env bash
# Checks the dashboard and the alerts in docs/monitoring. They may use only metrics that docs/monitoring.md lists. If
# promtool (part of Prometheus) is installed, the script also checks the alerting rules and runs their tests.
set -euo pipefail
cd "$(dirname "$0")/.."

page=docs/monitoring.md
unknown=$(LC_ALL=C comm -23 \
  <(grep -ohE '\b(baton|leader_election)_[a-z_]+' docs/monitoring/{dashboard.json,alerts.yml,alerts_test.yml} |
    sed -E 's/_(bucket|sum|count)$//' | LC_ALL=C sort -u) \
  <(sed -nE 's/^\| .([a-z_]+). \|.*/\1/p' "$page" | LC_ALL=C sort -u))
if [[ -n $unknown ]]; then
  echo "monitoring: these metrics are not in $page:" "$unknown" >&2
  exit 1
fi

if ! command -v promtool >/dev/null; then
  echo 'NOT CHECKED: the alerts, because promtool is missing (Debian: apt-get install prometheus)'
  exit 0
fi
promtool check rules docs/monitoring/alerts.yml
promtool test rules docs/monitoring/alerts_test.yml
