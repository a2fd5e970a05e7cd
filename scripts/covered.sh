#!/bin/sh
# The compiler, for the packages of this workspace: what it makes counts how often each edge is taken, as libFuzzer wants
# it. Cargo calls it as RUSTC_WORKSPACE_WRAPPER, so that what others wrote is not built again.
exec "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on
