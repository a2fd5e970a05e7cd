#!/usr/bin/env bash
# Fuzzes all parsers of untrusted bytes (the `READERS` of each crate), and reports the findings.
#
#   scripts/fuzz.sh [MINUTES [READER…]]
#
# MINUTES is the total time, 1 by default. Two readers are fuzzed at a time, each for its share of the time. To fuzz one
# reader for longer, name it. The script needs g++, for libFuzzer. The first run takes several minutes longer, because
# it builds most dependencies again.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-1}
shift || true
target=${CARGO_TARGET_DIR:-target}
at_a_time=2

if ! [[ $minutes =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz: \`$minutes\` is not a number of minutes: expected 1 or more" >&2
  exit 2
fi
readers=("$@")
if ((${#readers[@]} == 0)); then
  readers=(host/fuzz/corpus/*/)
fi
readers=("${readers[@]%/}")
readers=("${readers[@]##*/}")
seconds=$((minutes * 60 * at_a_time / ${#readers[@]}))
# If there is only one reader, fuzz it for the total time, not for twice as long.
((seconds <= minutes * 60)) || seconds=$((minutes * 60))
((seconds > 0)) || seconds=1
for reader in "${readers[@]}"; do
  if ! [[ -d host/fuzz/corpus/$reader ]]; then
    echo "fuzz: unknown reader \`$reader\`; the readers are: $(ls host/fuzz/corpus | paste -sd' ')" >&2
    exit 2
  fi
done
if ! command -v g++ >/dev/null; then
  echo 'fuzz: g++, which compiles libFuzzer, is missing: install it (Debian: apt-get install g++)' >&2
  exit 1
fi
RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/covered.sh \
  cargo build --locked --workspace --features baton-fuzz/libfuzzer --bin fuzz

# Fuzzes one reader. Starts from the committed corpus, and adds new inputs to a second corpus in the target folder.
fuzz() {
  local reader=$1 work=$target/fuzz/$1
  mkdir -p "$work/corpus"
  if BATON_FUZZ_READER=$reader "$target/debug/fuzz" "$work/corpus" "host/fuzz/corpus/$reader" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -use_value_profile=1 \
    -artifact_prefix="$work/" >"$work/log" 2>&1; then
    echo "$reader: no findings; $(grep '^Done' "$work/log")," \
      "$(find "$work/corpus" -type f | wc -l) distinct inputs"
  else
    echo "$reader: FOUND, see $work/log; add the input to host/fuzz/corpus/$reader:"
    find "$work" -maxdepth 1 -type f ! -name log -printf '  %p\n'
    return 1
  fi
}

failed=0
for reader in "${readers[@]}"; do
  while (($(jobs -rp | wc -l) >= at_a_time)); do
    wait -n || failed=1
  done
  fuzz "$reader" &
done
while (($(jobs -p | wc -l) > 0)); do
  wait -n || failed=1
done
exit "$failed"
