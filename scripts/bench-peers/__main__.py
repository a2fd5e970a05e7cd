"""Measures Baton beside what else a user would pick, in one run on one machine: `make bench-peers`.

    python3 scripts/bench-peers target/release/baton [WORD…]     # only those with one of the words in their titles

All have the same TTL and the same task: it appends a line to a file every 10 ms. What is judged is that file, in the
kernel's order. Everything runs on loopback in a temporary folder, and what was started is ended, by its process id. What
is printed last is a table in Markdown; where a part did not run, its cells say why, and the exit status is 1.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contender import TTL, Contender, Table
from contenders import AZURITE, CLASSPATH, HERE, JARS, BatonAzurite, BatonSqlite, Curator, Election, Lock
from watch import Process

CONTENDERS = [BatonSqlite, BatonAzurite, Lock, Election, Curator]
# Debian's packages, and what shows that one is there.
PACKAGES = {
    "etcd-server": Path("/usr/bin/etcd"),
    "etcd-client": Path("/usr/bin/etcdctl"),
    "libzookeeper-java": JARS / "zookeeper.jar",
    "libcurator-recipes-java": JARS / "curator-recipes.jar",
    "default-jdk-headless": Path("/usr/bin/javac"),
}


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    baton, words = Path(sys.argv[1]).resolve(), sys.argv[2:]
    chosen = [kind for kind in CONTENDERS if not words or any(word.lower() in kind.title.lower() for word in words)]
    if not chosen:
        sys.exit(f"none of the titles has such a word: {'; '.join(kind.title for kind in CONTENDERS)}")
    if not baton.exists():
        sys.exit(f"{baton} is missing: make build")
    install()
    print(machine(baton), file=sys.stderr)
    begin, table, complete = time.monotonic(), Table(), True
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as name:
        end_on_signals(name)
        folder = Path(name)
        build(folder)
        for kind in chosen:
            complete &= kind(folder, baton).measure(table)
    print(f"\nTook {(time.monotonic() - begin) / 60:.0f} min, with a TTL of {TTL} s:\n")
    for kind in chosen:
        print(f"- {kind.title}: {kind.settings}")
    print("\nMedians, and the worst in brackets:\n")
    print(render(chosen, table))
    return 0 if complete else 1


def install() -> None:
    """Gets what is missing, so that what cannot be had is said before anything is measured."""
    missing = [package for package, sign in PACKAGES.items() if not sign.exists()]
    if missing:
        root = [] if os.geteuid() == 0 else ["sudo"]
        print(f"installing Debian's packages as root: {' '.join(missing)}", file=sys.stderr)
        for words in ["update"], ["install", "--yes", "--no-install-recommends", *missing]:
            command = [*root, "apt-get", "--quiet", *words]
            if not all(map(shutil.which, [*root, "apt-get"])) or subprocess.call(command, stdout=sys.stderr) != 0:
                sys.exit(f"missing: {' '.join(missing)}; and this did not bring them: {' '.join(command)}")
        print("Debian starts etcd where services are started; this run uses another one of its own", file=sys.stderr)
    subprocess.run([HERE.parent.parent / "host/tests/azurite.sh", "install"], check=True, stdout=sys.stderr)


def build(folder: Path) -> None:
    """The task from one source, for the machine and for Baton, and Curator's node."""
    rustc = ["rustc", "-O", "-Cstrip=symbols", str(HERE / "task.rs"), "-o"]
    subprocess.run([*rustc, folder / "task"], check=True)
    subprocess.run([*rustc, folder / "task.wasm", "--target", "wasm32-wasip2"], check=True)
    subprocess.run(["javac", "-cp", CLASSPATH, "-d", folder, HERE / "Leader.java"], check=True)


def end_on_signals(folder: str) -> None:
    """A run that is ended does not wait for its rounds."""

    def end(*_: object) -> None:
        Process.end_all()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def machine(baton: Path) -> str:
    packages = said("dpkg-query", "--show", "--showformat=${Package} ${Version}, ", *PACKAGES)
    azurite = said(str(AZURITE), "--version")
    load = Path("/proc/loadavg").read_text().split()[0]
    return f"""{os.cpu_count()} processors, Linux {os.uname().release}, load before {load}
{said(str(baton), "--version")}, {packages}azurite {azurite}"""


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.removesuffix("\n")


def render(chosen: list[type[Contender]], table: Table) -> str:
    rows = [["", *(kind.title for kind in chosen)], *([what, *cells] for what, cells in table.items())]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())
