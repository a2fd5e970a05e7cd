#!/bin/sh
# Runs rustc with the coverage instrumentation that libFuzzer needs: counters for each edge of the control flow. Cargo
# runs this script as RUSTC_WORKSPACE_WRAPPER. Cargo uses that wrapper only for the workspace's own packages, so
# dependencies need not be built again.
exec "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on
