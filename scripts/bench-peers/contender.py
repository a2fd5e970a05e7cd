"""The measurements, which are the same for each contender."""

import itertools
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from watch import Effects, Line, Process

# Times in seconds. The TTL is Baton's default, which is also the shortest lease that Azure offers.
TTL = 15
STOPPED = TTL + 5
OUTAGE = 2 * TTL
AFTER = 5
WINDOW = 30
# Number of fleets to measure in parallel. A measurement spends most of its time waiting.
FLEETS = 7
STANDBYS = 3

Command = tuple[list[object], dict[str, str]]
Table = dict[str, list[str]]

MOVES = [
    f"SIGTERM to the leader → the next leader's first effect (n = {FLEETS})",
    f"SIGKILL of the leader → the next leader's first effect, minus the TTL (n = {FLEETS})",
    f"… and effects of the killed leader's task after that, within {AFTER} s",
]
STOPS = [
    f"SIGSTOP of the leading process for {STOPPED} s: its effects after the next leader's first (n = {FLEETS})",
    f"… and within {AFTER} s after SIGCONT",
    f"SIGSTOP of the process and its children for {STOPPED} s: effects within {AFTER} s after SIGCONT (n = {FLEETS})",
]
OUTAGES = [
    f"the store hangs → a task that responds to stop requests has ended (n = {FLEETS})",
    f"the store hangs → a task that ignores stop requests has ended (n = {FLEETS})",
]
RESTS = [
    f"a standby's memory (n = {STANDBYS})",
    f"a standby's CPU, of one core, over {WINDOW} s (n = {STANDBYS})",
    "memory of the store's server",
]


class Contender:
    """One way to run a task on one of several nodes. Each contender writes only to its own folder."""

    title: str
    settings: str
    # True if the task runs in the process that holds the lease.
    one_process = False

    def __init__(self, built: Path, baton: Path) -> None:
        self.built, self.baton = built, baton
        self.folder = built / type(self).__name__
        self.folder.mkdir()
        self.server: Process | None = None
        self.numbers = itertools.count(1)

    def serve(self) -> list[object]:
        """Returns the command that starts the contender's server, if it has one."""
        return []

    def node(self, name: str, place: Path, effects: Path, heeds: bool) -> Command:
        """Returns the command and environment of a node. The election has the name of the folder `place`."""
        raise NotImplementedError

    def ask(self, node: Process) -> None:
        """Asks a node to shut down."""
        node.signal(signal.SIGTERM)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Makes the store accept requests without answering them."""
        assert self.server
        self.server.signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self.server.signal_all(signal.SIGCONT)

    def measure(self, table: Table) -> bool:
        """Adds a column. Returns True if all parts were measured."""
        parts = [(self.moves, MOVES), (self.stops, STOPS), (self.outages, OUTAGES), (self.rests, RESTS)]
        try:
            return all([self.add(table, rows, part) for part, rows in parts])
        finally:
            if self.server:
                self.server.end()

    def add(self, table: Table, rows: list[str], part: Callable[[], list[str]]) -> bool:
        """Adds the cells of a part. If the measurement fails, the cells of this part contain the reason."""
        print(f"measuring {self.title}: {part.__name__} …", file=sys.stderr)
        failed = ""
        try:
            self.start()
            cells = part()
        except Exception as error:
            failed = f"did not run: {error}"
            cells = [failed] * len(rows)
        for row, cell in zip(rows, cells, strict=True):
            table.setdefault(row, []).append(cell)
        return not failed

    def start(self) -> None:
        """Starts the server, if there is one and it is not running."""
        if self.server is None and (command := self.serve()):
            server = Process(command, self.folder / "server.log", {})
            server.settle()
            self.server = server

    def moves(self) -> list[str]:
        hand_offs, crashes, orphans = zip(*side_by_side(self.move, [()] * FLEETS), strict=True)
        return [seconds(hand_offs), seconds(crashes), effects(orphans)]

    def move(self) -> tuple[float, float, list[Line]]:
        """Runs three nodes: asks the first leader to shut down, and kills the second leader."""
        with self.fleet(3) as (seen, nodes):
            first = seen.first_but(set())
            asked = time.time()
            self.ask(nodes[first.node])
            second = seen.first_but({first.node})
            time.sleep(AFTER + random.uniform(0, TTL / 3))
            killed = time.time()
            nodes[second.node].signal(signal.SIGKILL)
            third = seen.first_but({first.node, second.node})
            time.sleep(AFTER)
            return second.at - asked, third.at - killed - TTL, seen.of_old(second.node, third)

    def stops(self) -> list[str]:
        kinds = [(True,)] if self.one_process else [(True,), (False,)]
        rounds = side_by_side(self.stop, kinds * FLEETS)
        whole, alone = rounds[:: len(kinds)], rounds[1 :: len(kinds)]
        last = effects([after for _, after in whole])
        if self.one_process:
            return ["one process", "one process", last]
        return [effects([during for during, _ in alone]), effects([after for _, after in alone]), last]

    def stop(self, whole: bool) -> tuple[list[Line], list[Line]]:
        """Stops a leader for a while. Returns the effects that its task still has once the next leader's task runs: the
        effects while the leader is stopped, and the effects after it has resumed."""
        with self.fleet(2) as (seen, nodes):
            first = seen.first_but(set())
            leader = nodes[first.node]
            send = leader.signal_all if whole else leader.signal
            until = time.monotonic() + STOPPED
            send(signal.SIGSTOP)
            second = seen.first_but({first.node})
            time.sleep(max(1, until - time.monotonic()))
            resumed = time.time()
            send(signal.SIGCONT)
            time.sleep(AFTER)
            old = seen.of_old(first.node, second)
            return [line for line in old if line.at < resumed], [line for line in old if line.at >= resumed]

    def outages(self) -> list[str]:
        """Measures leaders whose task responds to stop requests, and leaders whose task ignores them."""
        with ExitStack() as stack:
            fleets = [stack.enter_context(self.fleet(1, heeds)) for heeds in (True, False) for _ in range(FLEETS)]
            with self.outage():
                begin = time.time()
                time.sleep(OUTAGE)
                last = [seen.look()[-1].at - begin for seen, _ in fleets]
        return [gone(last[:FLEETS]), gone(last[FLEETS:])]

    def rests(self) -> list[str]:
        memory, cpu = zip(*side_by_side(self.rest, [()] * STANDBYS), strict=True)
        server = f"{self.server.memory():.0f} MiB" if self.server else "none"
        return [middle(memory, "{:.0f} MiB"), middle(cpu, "{:.2f} %"), server]

    def rest(self) -> tuple[float, float]:
        """Returns the resources that a standby uses: memory in MiB, and CPU time in percent of a core."""
        with self.fleet(2) as (seen, nodes):
            leader = seen.first_but(set()).node
            (standby,) = (node for name, node in nodes.items() if name != leader)
            time.sleep(AFTER)
            before = standby.cpu()
            time.sleep(WINDOW)
            return standby.memory(), 100 * (standby.cpu() - before) / WINDOW

    @contextmanager
    def fleet(self, count: int, heeds: bool = True) -> Iterator[tuple[Effects, dict[str, Process]]]:
        """Runs nodes in a new election, with one leader and idle standbys."""
        place = self.folder / f"fleet-{next(self.numbers)}"
        (place / "effects").mkdir(parents=True)
        seen = Effects(place / "effects" / "lines")
        nodes: dict[str, Process] = {}
        try:
            for name in "abc"[:count]:
                command, env = self.node(name, place, seen.path, heeds)
                nodes[name] = Process(command, place / f"{name}.log", env)
            leader = seen.first_but(set()).node
            for name, node in nodes.items():
                if name != leader:
                    node.settle()
            # Spread the faults over the time between two renewals.
            time.sleep(random.uniform(0, TTL / 3))
            yield seen, nodes
        finally:
            for node in nodes.values():
                node.end()


def side_by_side(measure: Callable, arguments: list[tuple]) -> list:
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(lambda each: measure(*each), arguments))


def middle(values: Sequence[float], text: str) -> str:
    """Formats the median. Adds the worst value, if it differs from the median as formatted."""
    median, worst = text.format(statistics.median(values)), text.format(max(values))
    return median if median == worst else f"{median} ({worst})"


def seconds(values: Sequence[float]) -> str:
    return middle(values, "{:.2f} s")


def effects(rounds: Sequence[list[Line]]) -> str:
    return middle([len(lines) for lines in rounds], "{:.0f}")


def gone(last: list[float]) -> str:
    """Formats the time until the last effect, or the number of tasks that still have effects at the end."""
    going_on = sum(at > OUTAGE - 1 for at in last)
    return f"never: {going_on} of {len(last)} continue after {OUTAGE} s" if going_on else seconds(last)
