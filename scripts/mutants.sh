#!/usr/bin/env bash
# Breaks the elector in one place at a time, and checks that its tests detect each of these mutants.
# `.cargo/mutants.toml` lists the exceptions, with their reasons.
#
#   scripts/mutants.sh [MINUTES]            tests a random part of the mutants, for about that time (2 by default)
#   SHARD=3/20 scripts/mutants.sh           tests a part again, with the SHARD that the earlier run printed
#   SHARD=0/1 scripts/mutants.sh            tests all mutants, which takes about an hour on 2 CPUs
#
# The first run takes a minute longer. `target/mutants.out` contains the results: the diff and the log of each mutant.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-2}
if ! [[ $minutes =~ ^[1-9][0-9]*$ ]]; then
  echo "mutants: \`$minutes\` is not a number of minutes: expected 1 or more" >&2
  exit 2
fi
# Average time per mutant, in seconds, when two mutants are tested at a time.
seconds_each=4
count=$(cargo mutants --list --package baton-election | wc -l)
shards=$(((count * seconds_each + minutes * 60 - 1) / (minutes * 60)))
shard=${SHARD:-$((RANDOM % shards))/$shards}
echo "part $shard of $count mutants (repeat it: SHARD=$shard)"

# Incremental builds take a third of the time of full builds. The simulation and the model run only briefly.
code=0
env -u CARGO_TARGET_DIR CARGO_INCREMENTAL=1 BATON_SIM_SEEDS=200 BATON_MODEL_SECONDS=1 \
  cargo mutants --package baton-election --jobs 2 --sharding round-robin --shard "$shard" --output target || code=$?
# Status 3 means that the tests of some mutants timed out. A timeout also counts as detecting the mutant.
((code == 0 || code == 3)) || exit "$code"
