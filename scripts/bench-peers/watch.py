"""Processes with their descendants, and the file that their tasks write."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

# Timeout in seconds, for events that would be immediate on an idle machine.
PATIENCE = 60


class Line(NamedTuple):
    """An effect of the task: its node and time."""

    node: str
    at: float


class Effects:
    """The file to which all nodes of a fleet append, and the lines read so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self.read = 0
        path.touch()

    def look(self) -> list[Line]:
        with self.path.open() as file:
            file.seek(self.read)
            while (text := file.readline()).endswith("\n"):
                node, _, at = text.split()
                self.lines.append(Line(node, float(at)))
                self.read = file.tell()
        return self.lines

    def first_but(self, others: set[str]) -> Line:
        """Returns the first effect of a node that is not in `others`."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for line in self.look():
                if line.node not in others:
                    return line
            time.sleep(0.05)
        raise RuntimeError(f"no other node has led within {PATIENCE} s")

    def of_old(self, old: str, new: Line) -> list[Line]:
        """Returns the effects of the old leader that follow the new leader's first effect."""
        lines = self.look()
        return [line for line in lines[lines.index(new) :] if line.node == old]


class Process:
    """A process in a new session, and all other processes of that session, including orphans."""

    started: ClassVar[list["Process"]] = []
    over: ClassVar[bool] = False

    def __init__(self, command: list[object], log: Path, env: dict[str, str]) -> None:
        words = [str(word) for word in command]
        self.name = words[0]
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | env,
                cwd=log.parent,
                start_new_session=True,
            )
        Process.started.append(self)
        if Process.over:
            self.end()
            raise RuntimeError("the run is over")

    @classmethod
    def end_all(cls) -> None:
        """Kills all processes, and prevents new ones."""
        cls.over = True
        for process in cls.started:
            process.end()

    def end(self) -> None:
        while self.members():
            self.signal_all(signal.SIGKILL)
            time.sleep(0.01)
        self.popen.wait()

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def signal_all(self, number: int) -> None:
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def members(self) -> list[int]:
        return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if self.has(stat)]

    def has(self, stat: Path) -> bool:
        try:
            # The fields that follow the name in parentheses: state, parent, group, session.
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            return False
        return int(session) == self.popen.pid and state != "Z"

    def settle(self) -> None:
        """Waits until the process has finished starting: until it uses less than 0.05 s of CPU time in a second."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            before = self.cpu()
            time.sleep(1)
            if self.popen.poll() is not None:
                raise RuntimeError(f"{self.name} has exited with {self.popen.returncode}")
            if before > 0 and self.cpu() - before < 0.05:
                return
        raise RuntimeError(f"{self.name} does not become idle")

    def cpu(self) -> float:
        """Returns the CPU time that the live threads have used, in seconds."""
        total = 0
        for pid in self.members():
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                # The thread may have exited.
                with suppress(OSError):
                    total += int(path.read_text().split()[0])
        return total / 1e9

    def memory(self) -> float:
        """Returns the memory use in MiB, as if no other programs ran: mapped files count in full, but only once."""
        files: dict[tuple[str, ...], int] = {}
        anonymous = 0
        for pid in self.members():
            for words in map(str.split, Path(f"/proc/{pid}/smaps").read_text().splitlines()):
                if "-" in words[0]:
                    file = tuple(words[2:5])  # Offset, device and inode.
                elif words[0] == "Rss:" and file[2] != "0":
                    files[file] = max(files.get(file, 0), int(words[1]))
                elif words[0] == "Pss:" and file[2] == "0":
                    anonymous += int(words[1])
        return (anonymous + sum(files.values())) / 1024
