"""Baton and its peers: start commands and settings."""

import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contender import TTL, Command, Contender
from watch import PATIENCE, Process

HERE = Path(__file__).resolve().parent
JARS = Path("/usr/share/java")
AZURITE = HERE.parent.parent / ".cache/azurite/node_modules/.bin/azurite-blob"
NAMES = "curator-recipes curator-framework curator-client zookeeper zookeeper-jute guava slf4j-api slf4j-nop netty-all"
CLASSPATH = ":".join(f"{JARS}/{name}.jar" for name in NAMES.split())


class BatonSqlite(Contender):
    title = "Baton, SQLite"
    settings = "--grace 0s, because the task is a plain program that does not handle stop requests; otherwise defaults"

    def store(self, place: Path) -> list[str]:
        return [f"sqlite:{place}/store"]

    def node(self, name: str, place: Path, effects: Path, heeds: bool) -> Command:
        command: list[object] = [self.baton, "run", self.built / "task.wasm", "--election", place.name, "--node", name]
        command += ["--store", *self.store(place), "--lease", f"{TTL}s", "--grace", "0s"]
        command += ["--dir", f"{effects.parent}::/effects", "--env", f"TASK_FILE=/effects/{effects.name}"]
        return command, {"HOME": str(self.folder)}

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Locks the databases of the leases, as another process could."""
        with ExitStack() as stack:
            for path in self.folder.glob("*/store/lease.db"):
                database = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
                stack.callback(database.close)
                database.execute("BEGIN IMMEDIATE")
            yield


class BatonAzurite(BatonSqlite):
    title = "Baton, Azurite"
    settings = "the same, with --peer; the emulator Azurite, in memory"

    def serve(self) -> list[object]:
        self.port = free_port()
        flags = "--inMemoryPersistence --skipApiVersionCheck --disableTelemetry --silent --blobHost 127.0.0.1 --blobPort"
        return [AZURITE, *flags.split(), self.port]

    def store(self, place: Path) -> list[str]:
        return [f"azurite://127.0.0.1:{self.port}/bench", "--create", "--peer", "127.0.0.1:0"]

    outage = Contender.outage


class Etcd(Contender):
    """One etcd server, with its default settings except addresses."""

    def serve(self) -> list[object]:
        self.url, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        clients = f"--listen-client-urls {self.url} --advertise-client-urls {self.url}"
        others = f"--listen-peer-urls {peers} --initial-advertise-peer-urls {peers} --initial-cluster default={peers}"
        return ["etcd", "--data-dir", self.folder / "data", *clients.split(), *others.split()]


class Lock(Etcd):
    title = "`etcdctl lock`"
    settings = "--ttl, with the task as its child process; SIGTERM goes to both, as from systemd"

    def node(self, name: str, place: Path, effects: Path, heeds: bool) -> Command:
        # If a signal is ignored before exec, it stays ignored afterwards.
        task = [self.built / "task"] if heeds else ["sh", "-c", 'trap "" TERM INT; exec "$0"', self.built / "task"]
        env = {"ETCDCTL_API": "3", "TASK_FILE": str(effects), "NODE": name}
        return ["etcdctl", "--endpoints", self.url, "lock", place.name, "--ttl", TTL, "--", *task], env

    def ask(self, node: Process) -> None:
        # etcdctl reacts to SIGTERM only after its child has exited, and does not forward the signal.
        node.signal_all(signal.SIGTERM)


class Election(Etcd):
    title = "etcd, election API"
    settings = "a Python program that behaves like a session of etcd's Go client: elect.py"
    one_process = True

    def node(self, name: str, place: Path, effects: Path, heeds: bool) -> Command:
        return [sys.executable, HERE / "elect.py", self.url, place.name, TTL, effects, name, str(heeds).lower()], {}


class Curator(Contender):
    title = "ZooKeeper, Curator"
    settings = "LeaderSelector with its listener adapter, Java's default limits: Leader.java; one server, tickTime 2000"
    one_process = True

    def serve(self) -> list[object]:
        self.port = free_port()
        settings = {"tickTime": 2000, "dataDir": self.folder / "data", "clientPort": self.port}
        settings |= {"clientPortAddress": "127.0.0.1", "admin.enableServer": "false"}
        file = self.folder / "zoo.cfg"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return ["java", "-cp", CLASSPATH, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file]

    def node(self, name: str, place: Path, effects: Path, heeds: bool) -> Command:
        arguments = [f"127.0.0.1:{self.port}", f"/{place.name}", TTL * 1000, effects, name, str(heeds).lower()]
        return ["java", "-cp", f"{CLASSPATH}:{self.built}", "Leader", *arguments], {}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
