#!/bin/sh
# Runs rustc with the coverage instrumentation that libFuzzer needs: counters for each edge of the control flow. Cargo
# uses it as RUSTC_WORKSPACE_WRAPPER, only for packages of this workspace, so that dependencies are not built again.
exec "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on
