#!/usr/bin/env python3
"""Runs the preview-1 programs of WebAssembly/wasi-testsuite as coordinators, and prints the results.

    git clone --branch prod/testsuite-all https://github.com/WebAssembly/wasi-testsuite
    scripts/wasi-testsuite.py wasi-testsuite target/release/baton > results.txt

Each line contains the digest of a module, its name, and `passes` or the reason for its failure. The repository contains
only these results, in `host/tests/wasi-testsuite.txt`, and not the suite. The programs, written by others, check the
behavior of `--arg`, `--env` and `--dir`.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    suite, baton = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    modules = sorted(suite.glob("tests/*/testsuite/wasm32-wasip1/*.wasm"))
    if not modules:
        sys.exit(f"{suite}: found no tests/*/testsuite/wasm32-wasip1/*.wasm: check out the branch prod/testsuite-all")
    passed = 0
    for module in modules:
        problem = run(module, baton)
        passed += problem is None
        digest = hashlib.sha256(module.read_bytes()).hexdigest()
        print(f"{digest} {module.parent.parent.parent.name}/{module.stem}: {problem or 'passes'}", flush=True)
    print(f"{passed} of {len(modules)} pass", file=sys.stderr)


def run(module, baton):
    """Returns the difference from the specified behavior, or None."""
    path = module.with_suffix(".json")
    wanted = json.loads(path.read_text()) if path.exists() else {}
    with tempfile.TemporaryDirectory() as place:
        flags = []
        for name in wanted.get("dirs", []):
            shutil.copytree(module.parent / name, Path(place) / name, symlinks=True)
            flags += ["--dir", f"{place}/{name}::/{name}"]
        flags += [f"--arg={place_of(argument, wanted)}" for argument in wanted.get("args", [])]
        flags += [f"--env={name}={value}" for name, value in wanted.get("env", {}).items()]
        command = [baton, "run", module.resolve(), "--store", f"sqlite:{place}/store", "--election", "suite", "--lease", "15s"]
        command += ["--restart", "on-failure", "--log-format", "json", "--node", "suite", *flags]
        return judge(command, place, wanted)


def place_of(argument, wanted):
    """Returns the argument, as an absolute path if it names a granted folder."""
    return f"/{argument}" if argument in wanted.get("dirs", []) else argument


def judge(command, place, wanted):
    host = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, said = [], []
    try:
        for line in host.stdout:
            said.append(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "output" and event.get("stream") == "stdout":
                lines.append(event["line"])
            if event.get("event") == "ended":
                return compare(event, lines, wanted)
    finally:
        host.terminate()
        host.wait()
    return "the host exited: " + (said[-1].strip() if said else "no output")


def compare(gone, lines, wanted):
    status = wanted.get("exit_code", 0)
    if (gone["outcome"] == "done") != (status == 0):
        return f"{gone['outcome']}: {gone.get('message', '').splitlines()[0] if gone.get('message') else ''}"
    if "\n".join(lines) != wanted.get("stdout", "").rstrip("\n") and "stdout" in wanted:
        return f"it printed {lines}"
    return None


if __name__ == "__main__":
    main()
