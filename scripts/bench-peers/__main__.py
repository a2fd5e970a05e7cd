"""Compares Baton with the alternatives that a user would choose, in one run on one machine: `make bench-peers`.

    python3 scripts/bench-peers target/release/baton [WORD…]     # only systems with one of these words in the title

All systems have the same TTL and run the same task, which appends a line to a file every 10 ms. The results come from
the order of these lines. All systems run on loopback, in a temporary folder. The script kills all processes that it has
started, by their process ids. At the end, the script prints a Markdown table. If a part did not run, its cells contain
the reason, and the exit status is 1.
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
# Debian packages, and for each a file that exists if the package is installed.
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
        sys.exit(f"no title contains these words; the titles are: {'; '.join(kind.title for kind in CONTENDERS)}")
    if not baton.exists():
        sys.exit(f"{baton} is missing: run `make build`")
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
    print("\nMedians, with the worst value in parentheses:\n")
    print(render(chosen, table))
    return 0 if complete else 1


def install() -> None:
    """Installs missing tools. Fails before any measurement if a tool cannot be installed."""
    missing = [package for package, sign in PACKAGES.items() if not sign.exists()]
    if missing:
        root = [] if os.geteuid() == 0 else ["sudo"]
        print(f"installing Debian's packages as root: {' '.join(missing)}", file=sys.stderr)
        for words in ["update"], ["install", "--yes", "--no-install-recommends", *missing]:
            command = [*root, "apt-get", "--quiet", *words]
            if not all(map(shutil.which, [*root, "apt-get"])) or subprocess.call(command, stdout=sys.stderr) != 0:
                sys.exit(f"missing: {' '.join(missing)}; cannot install them: failed: {' '.join(command)}")
        print("note: Debian may have started etcd as a service; this run starts and uses its own etcd", file=sys.stderr)
    subprocess.run([HERE.parent.parent / "host/tests/azurite.sh", "install"], check=True, stdout=sys.stderr)


def build(folder: Path) -> None:
    """Compiles the task from one source, natively and for Baton. Also compiles the node that uses Curator."""
    rustc = ["rustc", "-O", "-Cstrip=symbols", str(HERE / "task.rs"), "-o"]
    subprocess.run([*rustc, folder / "task"], check=True)
    subprocess.run([*rustc, folder / "task.wasm", "--target", "wasm32-wasip2"], check=True)
    subprocess.run(["javac", "-cp", CLASSPATH, "-d", folder, HERE / "Leader.java"], check=True)


def end_on_signals(folder: str) -> None:
    """Makes SIGINT and SIGTERM end the run at once, without waiting for its measurements."""

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
    return f"""{os.cpu_count()} CPUs, Linux {os.uname().release}, load before {load}
{said(str(baton), "--version")}, {packages}azurite {azurite}"""


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.removesuffix("\n")


def render(chosen: list[type[Contender]], table: Table) -> str:
    rows = [["", *(kind.title for kind in chosen)], *([what, *cells] for what, cells in table.items())]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())
