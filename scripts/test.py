#!/usr/bin/env python3
"""Runs all tests, and prints a summary: the slowest tests, the time of each binary, and the totals.

    scripts/test.py                         all tests, as `make test` does
    scripts/test.py -E 'test(/links::/)'    passes arguments to `cargo nextest run`
    STORES=all scripts/test.py              also runs on Azurite the scenarios that otherwise run only on SQLite
"""

import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

# Most tests wait for processes, so more tests than CPUs run at a time.
TESTS_PER_PROCESSOR = 6
SLOWEST = 10
# The scenarios that run only with STORES=all. All other ignored tests are started by other tests.
ON_AZURITE = "binary(blackbox) & test(/(^|::)on_azurite(::|$)/)"

root = pathlib.Path(__file__).resolve().parent.parent
target = root / os.environ.get("CARGO_TARGET_DIR", "target")
# The list of tests that this run skipped, written by `skipped` in host/tests/support.
skipped_list = target / "tmp" / "skipped"


def nextest(arguments):
    """Runs tests. Returns True if all passed, and their JUnit report."""
    report = target / "nextest" / "default" / "junit.xml"
    report.unlink(missing_ok=True)
    threads = TESTS_PER_PROCESSOR * len(os.sched_getaffinity(0))
    command = ["cargo", "nextest", "run", "--locked", "--workspace", "--no-fail-fast", f"--test-threads={threads}"]
    done = subprocess.run([*command, *arguments], cwd=root)
    return done.returncode == 0, xml.parse(report).getroot() if report.exists() else None


def doctests():
    """Runs the doctests. Returns True if all passed, and the numbers of doctests that passed and failed."""
    command = ["cargo", "test", "--locked", "--workspace", "--doc", "--no-fail-fast"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        passed = failed = 0
        for line in process.stdout:
            print(line, end="", flush=True)
            if counts := re.match(r"test result: .* (\d+) passed; (\d+) failed", line):
                passed, failed = passed + int(counts[1]), failed + int(counts[2])
    return process.returncode == 0, passed, failed


def main():
    skipped_list.unlink(missing_ok=True)
    arguments = sys.argv[1:]
    runs = [nextest(arguments)]
    if os.environ.get("STORES") == "all":
        runs.append(nextest(["--run-ignored=only", "-E", ON_AZURITE]))
    # If there are arguments, run only nextest's tests: the arguments are for nextest, which does not support doctests.
    examples_hold, passed, failed = doctests() if not arguments else (True, 0, 0)

    suites = [suite for _, report in runs if report is not None for suite in report.iter("testsuite")]
    tests = [(float(test.get("time")), suite.get("name"), test) for suite in suites for test in suite.iter("testcase")]
    print(f"\nThe {SLOWEST} slowest tests:")
    for seconds, binary, test in sorted(tests, key=lambda test: -test[0])[:SLOWEST]:
        print(f"  {seconds:7.1f} s  {binary} {test.get('name')}")
    print("\nTotal time of each binary's tests:")
    for binary in sorted({binary for _, binary, _ in tests}):
        times = [seconds for seconds, of, _ in tests if of == binary]
        print(f"  {sum(times):7.1f} s  {len(times):>4} in {binary}")
    skipped = skipped_list.read_text().splitlines() if skipped_list.exists() else []
    print("", *skipped, sep="\n")

    bad = sum(1 for _, _, test in tests if test.find("failure") is not None or test.find("error") is not None)
    passed += len(tests) - bad - len(skipped)
    print(f"{passed} passed, {failed + bad} failed, {len(skipped)} skipped")
    sys.exit(0 if examples_hold and all(succeeded for succeeded, _ in runs) else 1)


main()
